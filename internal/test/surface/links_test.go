package surface

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	code    = regexp.MustCompile("(?ms)^ *```.*?^ *```$|`[^`\n]*`")
)

// TestLinks finds that links within the repository lead to files, and to headings in them.
func TestLinks(t *testing.T) {
	const root = "../../../"
	var documents []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/tutorial/*.md", "docs/tutorial/*/*.md"} {
		found, err := filepath.Glob(root + pattern)
		if err != nil || found == nil {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		documents = append(documents, found...)
	}
	for _, document := range documents {
		text := code.ReplaceAllString(string(read(t, document)), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			target := document
			if path != "" {
				target = filepath.Join(filepath.Dir(document), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", strings.TrimPrefix(document, root), m[1], err)
			} else if anchor != "" && !anchors(string(read(t, target)))[anchor] {
				t.Errorf("%s links to %s, which has no such heading", strings.TrimPrefix(document, root), m[1])
			}
		}
	}
}

// anchors returns the names by which links reach the headings of a document.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(m[1]), "")
		names[strings.ReplaceAll(name, " ", "-")] = true
	}
	return names
}
