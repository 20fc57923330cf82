//go:build race

package main

// race says that the tests run under the race detector.
const race = true
