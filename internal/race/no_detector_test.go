//go:build !race

package race_test

const detector = false
