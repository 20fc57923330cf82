package devicecode

import (
	"context"
	"errors"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/keep"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// cache is a folder of images in files that are named by the inputs of the compilation.
// Several processes can use it at once: files are created by rename, so they are
// complete, and a lock keeps two processes from compiling the same. It only saves time:
// where it cannot be written, all works without it. What others have put there is not
// read.
type cache struct {
	dir   string    // "" if there is none
	until time.Time // when others that compile the same are no longer waited for
}

// lockPatience is longer than a compilation takes on a busy machine, of which the others that need
// it are better off if they wait: there may be hundreds. Who takes longer is stopped, or hangs.
const lockPatience = 2 * time.Minute

// openCache creates the folder if there is none. dir may be "".
func openCache(ctx context.Context, op, dir string) (cache, error) {
	if dir == "" {
		dir = os.Getenv("MSCCLGO_CACHE")
	}
	mode := fs.FileMode(0o755) // other users may read what root has compiled for all
	if dir == "" {
		user, err := os.UserCacheDir()
		switch {
		case err != nil && keep.Wanted(ctx):
			return cache{}, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot find the user's cache folder; set MSCCLGO_CACHE to one: %w", err)
		case err != nil:
			return cache{}, nil
		}
		dir, mode = filepath.Join(user, "mscclgo"), 0o700
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return cache{}, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot find the cache folder: %w", err)
	}
	switch err := os.MkdirAll(dir, mode); {
	case errors.Is(err, unix.ENOTDIR), err != nil && keep.Wanted(ctx):
		return cache{}, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot create the cache folder; set MSCCLGO_CACHE to another: %w", err)
	case err != nil:
		return cache{}, nil
	}
	return cache{dir, time.Now().Add(lockPatience)}, nil
}

// imageKind is the envelope of an image's file, which holds the key and the image. Its
// checksum detects damage.
var imageKind = [4]byte{'m', 'i', 'm', 'g'}

const (
	imageVersion = 6 // also raised when the description of parameters changes
	maxKey       = 256
	maxFile      = 1 << 30 // bytes; no file of ours comes near it
)

// image returns the image of the key from the cache or, if there is none or it is
// damaged, from build.
func (c cache) image(ctx context.Context, op, key string, build func(context.Context) ([]byte, error)) ([]byte, error) {
	if c.dir == "" {
		return build(ctx)
	}
	if image, ok := c.read(key); ok {
		return image, nil
	}
	unlock, err := c.lock(ctx, op, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if image, ok := c.read(key); ok {
		return image, nil
	}
	image, err := build(ctx)
	if err != nil {
		return nil, err
	}
	// Without it the image is made again the next time.
	return image, kept(ctx, op, c.writeImage(key, image))
}

func (c cache) writeImage(key string, image []byte) error {
	w := wire.NewWriter(len(key) + len(image) + 4)
	w.String(key)
	w.Raw(image)
	return c.write(filepath.Join(c.dir, key), wire.Seal(imageKind, imageVersion, w.Bytes()))
}

// kept returns an error if a file was not written that has to be.
func kept(ctx context.Context, op string, err error) error {
	if err == nil || !keep.Wanted(ctx) {
		return nil
	}
	return mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot keep the image in the cache; MSCCLGO_CACHE names its folder: %w", err)
}

// read returns an image that is in the cache.
func (c cache) read(key string) ([]byte, bool) {
	data, err := readOwn(filepath.Join(c.dir, key))
	if err != nil {
		return nil, false
	}
	return openImage(key, data)
}

func openImage(key string, data []byte) ([]byte, bool) {
	body, err := wire.Open(imageKind, imageVersion, data)
	if err != nil {
		return nil, false
	}
	r := wire.NewReader(body)
	// Anyone who may write to the folder may have renamed our files.
	same := r.String(maxKey) == key
	image := r.Raw(r.Len())
	return image, same && r.End() == nil
}

// readOwn reads a regular file that only this user or root can have written.
func readOwn(path string) ([]byte, error) {
	// Without O_NONBLOCK a pipe would be waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || !own(info) || info.Size() > maxFile {
		return nil, &os.PathError{Op: "read", Path: path, Err: fs.ErrPermission}
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// own reports whether only this user and root can change a file, or what is in a folder.
func own(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == 0 || int(stat.Uid) == os.Geteuid()) && info.Mode().Perm()&0o022 == 0
}

// write creates or replaces a file.
func (c cache) write(path string, data []byte) error {
	c.sweep()
	f, err := os.CreateTemp(c.dir, newPrefix)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once renamed
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// newPrefix begins the names of files that are being written.
const newPrefix = ".new-"

// sweep removes what processes that were killed have left half written.
func (c cache) sweep() {
	left, _ := filepath.Glob(filepath.Join(c.dir, newPrefix+"*"))
	for _, path := range left {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > time.Hour {
			os.Remove(path)
		}
	}
}

// lock excludes other processes and goroutines from the key until unlock. Where the
// folder cannot be written it excludes nobody, and nor does it once who has the lock
// was waited for long enough.
//
// A lock is on a byte of one file, of an open file description (fcntl(2)), so that
// nothing is left of it when its owner is killed.
func (c cache) lock(ctx context.Context, op, key string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return func() {}, nil
	}
	hash := fnv.New64a()
	hash.Write([]byte(key))
	at := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(hash.Sum64() >> 2), Len: 1}
	unlock = func() {
		at.Type = unix.F_UNLCK // the file may be open in a child that was forked meanwhile
		unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &at)
		f.Close()
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		switch err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &at); err {
		case unix.EAGAIN, unix.EACCES: // another has it
		case unix.EINTR:
			continue
		default: // locked, or the file system has no locks
			return unlock, nil
		}
		select {
		case <-ctx.Done():
			unlock()
			return nil, mscclgo.FromContext(ctx, op, "while another process was compiling the same source")
		case <-time.After(pause):
		}
		if time.Now().After(c.until) {
			return unlock, nil
		}
	}
}
