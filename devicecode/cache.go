package devicecode

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// cache is a folder of images in files that are named by the inputs of the compilation.
// Several processes can use it at once: files are created by rename, so they are
// complete, and a lock file keeps two processes from compiling the same.
type cache struct{ dir string }

// openCache creates the folder if there is none. dir may be "".
func openCache(op, dir string) (cache, error) {
	if dir == "" {
		dir = os.Getenv("MSCCLGO_CACHE")
	}
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return cache{}, mscclgo.Errorf(mscclgo.ErrSystem, op, "there is no cache folder; set MSCCLGO_CACHE to one: %w", err)
		}
		dir = filepath.Join(user, "mscclgo")
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return cache{}, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot create the cache folder; set MSCCLGO_CACHE to another: %w", err)
	}
	return cache{dir}, nil
}

// imageKind is the envelope of an image's file. Its checksum detects damage.
var imageKind = [4]byte{'m', 'i', 'm', 'g'}

const imageVersion = 1

// image returns the image of the key from the cache or, if there is none or it is
// damaged, from build.
func (c cache) image(ctx context.Context, op, key string, build func(context.Context) ([]byte, error)) ([]byte, error) {
	path := filepath.Join(c.dir, key)
	if image, ok := readImage(path); ok {
		return image, nil
	}
	unlock, err := c.lock(ctx, op, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if image, ok := readImage(path); ok {
		return image, nil
	}
	image, err := build(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.write(path, wire.Seal(imageKind, imageVersion, image)); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot write the image to the cache; set MSCCLGO_CACHE to another folder: %w", err)
	}
	return image, nil
}

func readImage(path string) ([]byte, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, false
	}
	image, err := wire.Open(imageKind, imageVersion, data)
	return image, err == nil
}

// write creates or replaces a file.
func (c cache) write(path string, data []byte) error {
	f, err := os.CreateTemp(c.dir, ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once renamed
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// lock excludes other processes and goroutines from the key until unlock, which removes
// the lock file.
func (c cache) lock(ctx context.Context, op, key string) (unlock func(), err error) {
	path := filepath.Join(c.dir, key+".lock")
	fail := func(err error) (func(), error) {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot lock the cache; set MSCCLGO_CACHE to another folder: %w", err)
	}
	pause := time.Millisecond
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return fail(err)
		}
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil && sameFile(f, path):
			return func() {
				os.Remove(path)
				f.Close()
			}, nil
		case err != nil && !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			f.Close()
			return fail(err)
		}
		f.Close() // held by another, or removed by the one that held it
		select {
		case <-ctx.Done():
			return nil, mscclgo.FromContext(ctx, op, "while another process was compiling the same source")
		case <-time.After(pause):
			pause = min(2*pause, 50*time.Millisecond)
		}
	}
}

// sameFile reports whether path still names the open file.
func sameFile(f *os.File, path string) bool {
	open, err1 := f.Stat()
	named, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(open, named)
}

// headers returns a folder with the library's headers. It writes those that are missing
// or altered.
func (c cache) headers(ctx context.Context, op string) (string, error) {
	files, err := headerFiles()
	if err != nil {
		return "", mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot read the embedded headers: %w", err)
	}
	dir := filepath.Join(c.dir, "include-"+contentName(files))
	for name, text := range files {
		if ctx.Err() != nil {
			return "", mscclgo.FromContext(ctx, op, "while writing the headers")
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, text) {
			continue
		}
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = c.write(path, text)
		}
		if err != nil {
			return "", mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot write the headers to the cache; set MSCCLGO_CACHE to another folder: %w", err)
		}
	}
	return dir, nil
}
