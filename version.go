package mscclgo

// Version is the version of this module, by semantic versioning. It is v0: the API
// may change from one minor version to the next, as CHANGELOG.md describes. Between
// releases it is the next release's with the suffix "-dev"; the commit is in
// the build information (runtime/debug.ReadBuildInfo), where "mscclgo version" finds
// it.
const Version = "v0.1.0"
