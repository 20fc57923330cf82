// Package mscclgo holds what every layer of the library shares: the kinds of
// error and the one error value that carries them.
//
// The library itself is in the packages below: [gpu] opens devices,
// [communicator] joins ranks into a group, [channel] moves data between them
// from inside kernels, and [devicecode] compiles the kernels. The page
// docs/ARCHITECTURE.md shows how they fit together.
//
// [gpu]: https://pkg.go.dev/github.com/mscclgo/mscclgo/gpu
// [communicator]: https://pkg.go.dev/github.com/mscclgo/mscclgo/communicator
// [channel]: https://pkg.go.dev/github.com/mscclgo/mscclgo/channel
// [devicecode]: https://pkg.go.dev/github.com/mscclgo/mscclgo/devicecode
package mscclgo
