package devicecode

import (
	"context"
	"os"
	"path/filepath"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/keep"
)

// An installation can come with images, such as the Python package's of its own kernels for emulated
// devices. They are files of one folder, each named by the manifest's key, so that no compiler is asked
// for. Anyone who may write there may write the library beside it as well: unlike the cache's,
// the files may be anybody's.

// shipped returns the image of the key that came with the installation, unless images are made for the cache.
func shipped(ctx context.Context, key string) ([]byte, bool) {
	folder := os.Getenv("MSCCLGO_IMAGES")
	if folder == "" || keep.Wanted(ctx) {
		return nil, false
	}
	data, err := os.ReadFile(filepath.Join(folder, key))
	if err != nil {
		return nil, false
	}
	return openImage(key, data)
}

// ship writes an image to the folder of images of an installation that is being made. Included files
// would be somewhere else there.
func ship(ctx context.Context, j job, key string, image []byte) error {
	folder := keep.Folder(ctx)
	if folder == "" || len(j.options.IncludeDirs) > 0 {
		return nil
	}
	err := os.MkdirAll(folder, 0o755)
	if err == nil {
		err = cache{dir: folder}.writeImage(key, image)
	}
	if err != nil {
		return mscclgo.Errorf(mscclgo.ErrSystem, j.op, "cannot write the image to %s: %w", folder, err)
	}
	return nil
}
