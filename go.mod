module github.com/mscclgo/mscclgo

go 1.26.0

require (
	github.com/NVIDIA/go-nvml v0.13.3-0
	golang.org/x/sys v0.49.0
)

require github.com/google/uuid v1.6.0 // indirect
