package metrics_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice/metrics"
)

// TestDashboard finds that the dashboard asks for metrics that the collector has, and for
// all of them.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("grafana.json")
	if os.IsNotExist(err) {
		t.Skip("the sources are not here")
	}
	testerr.Check(t, err)
	var board struct {
		Title  string
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	testerr.Check(t, json.Unmarshal(text, &board))
	described := make(chan *prometheus.Desc, 100)
	metrics.New("ring", fixed{}).Describe(described)
	close(described)
	shown := map[string]bool{}
	for d := range described {
		_, name, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ = strings.Cut(name, `"`)
		shown[name] = false
	}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d, %q: the number is used twice, or it has no title or shows nothing", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			for _, name := range regexp.MustCompile(`mscclgo_\w+`).FindAllString(target.Expr, -1) {
				name = strings.TrimSuffix(name, "_bucket")
				if _, ok := shown[name]; !ok {
					t.Errorf("panel %q asks for %s, which there is not", p.Title, name)
				}
				shown[name] = true
			}
		}
	}
	for name, is := range shown {
		if !is {
			t.Errorf("no panel shows %s", name)
		}
	}
}
