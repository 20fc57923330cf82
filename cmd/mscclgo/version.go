package main

import (
	"errors"
	"fmt"
	"runtime/debug"
)

func version(c *call) error {
	if err := c.parseOnly(); err != nil {
		return err
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this binary was built without module support and does not know its version")
	}
	_, err := fmt.Fprintln(c.stdout, describe(info))
	return err
}

// describe gives the module's version and what it was built with, on one line.
// The go command puts a commit into the version where it knows one.
func describe(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	return fmt.Sprintf("mscclgo %s %s %s/%s", info.Main.Version, info.GoVersion, settings["GOOS"], settings["GOARCH"])
}
