package grace

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWait(t *testing.T) {
	const d = time.Second
	closesAfter := func(d time.Duration) <-chan struct{} {
		c := make(chan struct{})
		time.AfterFunc(d, func() { close(c) })
		return c
	}
	for name, test := range map[string]struct {
		one, other time.Duration // after which it is closed, or 0
		want       bool
		took       time.Duration
	}{
		"nothing":  {0, 0, true, d},
		"too late": {2 * d, 2 * d, true, d},
		"one":      {d / 4, 0, false, d / 4},
		"other":    {0, d * 19 / 20, false, d * 19 / 20}, // in the last part
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var one, other <-chan struct{}
				if test.one > 0 {
					one = closesAfter(test.one)
				}
				if test.other > 0 {
					other = closesAfter(test.other)
				}
				start := time.Now()
				if got, took := Wait(d, one, other), time.Since(start); got != test.want || took != test.took {
					t.Errorf("Wait = %v after %v, want %v after %v", got, took, test.want, test.took)
				}
			})
		})
	}
}
