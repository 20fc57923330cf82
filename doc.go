// Package mscclgo has the error of every package of this module, and the module's
// version.
//
// The packages below it are the library: [gpu] opens devices, [communicator] joins
// ranks into a group, [channel] moves data between them in kernels, [devicecode]
// compiles kernels, and [collective] has tuned collectives. The page
// docs/ARCHITECTURE.md shows how they fit together.
//
// [gpu]: https://pkg.go.dev/github.com/mscclgo/mscclgo/gpu
// [communicator]: https://pkg.go.dev/github.com/mscclgo/mscclgo/communicator
// [channel]: https://pkg.go.dev/github.com/mscclgo/mscclgo/channel
// [collective]: https://pkg.go.dev/github.com/mscclgo/mscclgo/collective
// [devicecode]: https://pkg.go.dev/github.com/mscclgo/mscclgo/devicecode
package mscclgo
