package testproc

import (
	"os"
	"path/filepath"
	"strings"
)

// kernelCache makes a cache folder that nothing else uses, so that a test can look for what is left in
// it. It begins with the kernels of the user's cache, and remove keeps there what was compiled meanwhile, so
// that no other package's tests compile it again. Both are hard links, and only save time: there are
// none where the folders are on two file systems.
func kernelCache() (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp("", "mscclgo-test-cache-"); err != nil {
		return "", nil, err
	}
	linkKernels(userCache(), dir)
	return dir, func() {
		KeepKernels(dir)
		os.RemoveAll(dir)
	}, nil
}

// userCache returns the folder where kernels are kept by default.
func userCache() string {
	if dir := os.Getenv("MSCCLGO_CACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "mscclgo")
}

// KeepKernels adds to the user's cache what is in another.
func KeepKernels(dir string) {
	if user := userCache(); user != "" && os.MkdirAll(user, 0o700) == nil {
		linkKernels(dir, user)
	}
}

// linkKernels gives a folder what another has and it has not, of what is compiled for emulated devices.
func linkKernels(from, to string) {
	entries, _ := os.ReadDir(from)
	for _, e := range entries {
		name := e.Name()
		if e.Type().IsRegular() && (strings.HasPrefix(name, "emu-") || strings.HasPrefix(name, "manifest-emu-")) && !strings.HasSuffix(name, ".lock") {
			os.Link(filepath.Join(from, name), filepath.Join(to, name))
		}
	}
}
