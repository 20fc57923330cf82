package devicecode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mscclgo/mscclgo"
)

// findNVCC searches the toolkits that the environment names, the PATH, and the usual
// place.
func findNVCC() (cudaTool, error) {
	var candidates []string
	for _, dir := range toolkits() {
		candidates = append(candidates, filepath.Join(dir, "bin", "nvcc"))
	}
	usual := len(candidates) - 1
	candidates = slices.Insert(candidates, usual, "nvcc") // the PATH
	for _, candidate := range candidates {
		path, err := exec.LookPath(candidate)
		if err != nil {
			continue
		}
		identity, err := fileIdentity(path)
		if err != nil {
			return cudaTool{}, err
		}
		return cudaTool{
			identity: "nvcc " + identity,
			compile: func(ctx context.Context, j cudaJob) ([]byte, error) {
				return compileNVCC(ctx, path, j)
			},
		}, nil
	}
	return cudaTool{}, fmt.Errorf("nvcc was not found; searched: %s", strings.Join(candidates, ", "))
}

func compileNVCC(ctx context.Context, nvcc string, j cudaJob) ([]byte, error) {
	dir, err := j.work.dir()
	if err != nil {
		return nil, err
	}
	source, target := filepath.Join(dir, "source.cu"), filepath.Join(dir, "image.cubin")
	if err := os.WriteFile(source, j.lineMarked(), 0o600); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, j.op, "cannot write a temporary file: %w", err)
	}
	args := append([]string{nvcc, "-cubin", "-arch=" + j.arch, "-o", target}, j.options...)
	if _, err := j.work.run(ctx, append(args, source), nil); err != nil {
		var e *mscclgo.Error
		if errors.As(err, &e) && strings.Contains(err.Error(), "Unsupported gpu architecture") {
			e.Kind = mscclgo.ErrUnsupported
		}
		return nil, err
	}
	image, err := os.ReadFile(target)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, j.op, "nvcc wrote no image: %w", err)
	}
	return image, nil
}
