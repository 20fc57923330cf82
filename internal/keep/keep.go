// Package keep says of a compilation that it is for the cache: an image that is not kept
// there is an error then. Others only compile again the next time.
package keep

import "context"

type key struct{}

// Images returns a context for compilations whose images have to be kept.
func Images(ctx context.Context) context.Context {
	return context.WithValue(ctx, key{}, true)
}

// Wanted reports whether images have to be kept.
func Wanted(ctx context.Context) bool {
	return ctx.Value(key{}) != nil
}

type folderKey struct{}

// Shipped returns a context for compilations whose images are also written to a folder that goes with
// an installation, where the variable MSCCLGO_IMAGES names it.
func Shipped(ctx context.Context, folder string) context.Context {
	return context.WithValue(ctx, folderKey{}, folder)
}

// Folder returns the folder of Shipped, or "".
func Folder(ctx context.Context) string {
	folder, _ := ctx.Value(folderKey{}).(string)
	return folder
}
