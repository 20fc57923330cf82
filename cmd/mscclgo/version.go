package main

import (
	"fmt"
	"runtime/debug"

	root "github.com/mscclgo/mscclgo"
)

func version(c *call) error {
	if err := c.parseOnly(); err != nil {
		return err
	}
	info, _ := debug.ReadBuildInfo()
	_, err := fmt.Fprintln(c.stdout, describe(info))
	return err
}

// describe returns the version and, from the build information if there is any, the
// version that the go command knows, which names the commit, and the toolchain.
func describe(info *debug.BuildInfo) string {
	text := "mscclgo " + root.Version
	if info == nil {
		return text
	}
	if v := info.Main.Version; v != "" && v != "(devel)" && v != root.Version {
		text += " (" + v + ")"
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	return fmt.Sprintf("%s %s %s/%s", text, info.GoVersion, settings["GOOS"], settings["GOARCH"])
}
