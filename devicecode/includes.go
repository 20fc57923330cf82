package devicecode

import (
	"bytes"
	"context"
	"os"
	"path/filepath"

	"github.com/mscclgo/mscclgo"
)

// includes returns a folder with the library's headers: one in the cache, so that
// debuggers and profilers find them later, or in the workspace if the cache cannot have
// one or others can write to it.
func (c cache) includes(ctx context.Context, op string, w *workspace, files map[string][]byte) (string, error) {
	if info, err := os.Stat(c.dir); err == nil && own(info) {
		dir := filepath.Join(c.dir, "include-"+contentName(files))
		if c.writeHeaders(ctx, dir, files) == nil {
			return dir, nil
		}
	}
	if ctx.Err() != nil {
		return "", mscclgo.FromContext(ctx, op, "while writing the headers")
	}
	temporary, err := w.dir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(temporary, "include")
	if err := (cache{dir: temporary}).writeHeaders(ctx, dir, files); err != nil {
		return "", mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot write the headers to a temporary folder: %w", err)
	}
	return dir, nil
}

// writeHeaders writes those headers that are missing or altered.
func (c cache) writeHeaders(ctx context.Context, dir string, files map[string][]byte) error {
	for name, text := range files {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		if have, err := readOwn(path); err == nil && bytes.Equal(have, text) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := c.write(path, text); err != nil {
			return err
		}
	}
	return nil
}
