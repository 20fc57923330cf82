package metrics_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/mscclgo/mscclgo/proxyservice/metrics"
)

// A service's counters on an HTTP page that a Prometheus server can scrape. In a
// program the source is a *proxyservice.ProxyService.
func Example() {
	registry := prometheus.NewRegistry()
	if err := registry.Register(metrics.New("rank 0", fixed{RingSize: 512})); err != nil {
		log.Fatal(err)
	}
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "mscclgo_proxy_ring") {
			fmt.Print(line)
		}
	}
	// Output:
	// mscclgo_proxy_ring_size{service="rank 0"} 512
	// mscclgo_proxy_ring_triggers{service="rank 0"} 0
}
