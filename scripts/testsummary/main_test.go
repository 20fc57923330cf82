package main

import (
	"strings"
	"testing"
)

const header = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestOne"}
`

func TestSummary(t *testing.T) {
	for _, c := range []struct {
		name, in string
		failed   bool
		want     string
	}{
		{"pass", header + `{"Action":"output","Package":"m/a","Test":"TestOne","Output":"=== RUN   TestOne\n"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"chatter\n"}
{"Action":"pass","Package":"m/a","Test":"TestOne"}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}
{"Action":"pass","Package":"m/a"}
`, false, "ok  \tm/a\t0.1s\n1 passed, 0 failed, 0 skipped\n"},
		{"skip", header + `{"Action":"output","Package":"m/a","Test":"TestOne","Output":"=== RUN   TestOne\n"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"    a_test.go:7: no GPU: none found\n"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"--- SKIP: TestOne (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestOne"}
{"Action":"pass","Package":"m/a"}
`, false, "skipped: no GPU: none found\n    m/a TestOne\n0 passed, 0 failed, 1 skipped\n"},
		{"fail", header + `{"Action":"output","Package":"m/a","Test":"TestOne","Output":"    a_test.go:7: wrong\n"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"        more\n"}
{"Action":"fail","Package":"m/a","Test":"TestOne"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t0.1s\n"}
{"Action":"fail","Package":"m/a"}
`, true, "    a_test.go:7: wrong\n        more\nFAIL\tm/a\t0.1s\nfailed: m/a TestOne: wrong\n0 passed, 1 failed, 0 skipped\n"},
		{"fail within", header + `{"Action":"output","Package":"m/a","Test":"TestOne","Output":"--- FAIL: TestOne (0.00s)\n"}
{"Action":"output","Package":"m/a","Test":"TestOne/x","Output":"    a_test.go:7: wrong\n"}
{"Action":"fail","Package":"m/a","Test":"TestOne/x"}
{"Action":"fail","Package":"m/a","Test":"TestOne"}
{"Action":"fail","Package":"m/a"}
`, true, "    a_test.go:7: wrong\n--- FAIL: TestOne (0.00s)\nfailed: m/a TestOne/x: wrong\n0 passed, 2 failed, 0 skipped\n"},
		{"process ended within a test", header + `{"Action":"output","Package":"m/a","Test":"TestOne","Output":"last words\n"}
{"Action":"fail","Package":"m/a"}
`, true, "last words\nfailed: m/a TestOne: its process ended\n0 passed, 0 failed, 0 skipped\n"},
		{"does not build", `{"ImportPath":"m/b","Action":"build-output","Output":"b.go:1: wrong\n"}
{"ImportPath":"m/b","Action":"build-fail"}
{"Action":"fail","Package":"m/b"}
`, true, "b.go:1: wrong\n0 passed, 0 failed, 0 skipped\n"},
		{"slowest", `{"Action":"pass","Package":"m/a","Test":"TestOne","Elapsed":0.5}
{"Action":"pass","Package":"m/a","Test":"TestTwo/x","Elapsed":70}
{"Action":"pass","Package":"m/a","Test":"TestTwo","Elapsed":71.25}
{"Action":"pass","Package":"m/a"}
`, false, "  71.2 s  m/a TestTwo\n   0.5 s  m/a TestOne\n3 passed, 0 failed, 0 skipped\n"},
		{"no test of that name", `{"Action":"output","Package":"m/a","Output":"testing: warning: no tests to run\n"}
{"Action":"pass","Package":"m/a"}
`, true, "testing: warning: no tests to run\n0 passed, 0 failed, 0 skipped\n"},
		{"not JSON", "go: what\n" + `{"Action":"pass","Package":"m/a"}`, false, "go: what\n0 passed, 0 failed, 0 skipped\n"},
	} {
		var out strings.Builder
		failed, err := summarize(strings.NewReader(c.in), &out)
		if err != nil || failed != c.failed || out.String() != c.want {
			t.Errorf("%s: summarize = %t, %v, printed\n%swant\n%s", c.name, failed, err, &out, c.want)
		}
	}
}

func TestNothingRan(t *testing.T) {
	var out strings.Builder
	if failed, err := summarize(strings.NewReader(""), &out); !failed || err == nil {
		t.Errorf("summarize of nothing = %t, %v", failed, err)
	}
}
