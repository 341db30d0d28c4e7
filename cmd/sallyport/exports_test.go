package main

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/sallyport-ai/sallyport/audit/export"
	"github.com/sallyport-ai/sallyport/audit/export/sink"
	"github.com/sallyport-ai/sallyport/test/metricsdoc"
)

func TestEveryMetricOfASinkIsDocumentedAndNoOther(t *testing.T) {
	shown := func(sinks ...export.SinkConfig) map[string]metricsdoc.Thing {
		tel, err := newTelemetry(t.Context(), telemetryConfig{}, "test", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := tel.close(); err != nil {
				t.Error(err)
			}
		})
		exports, err := export.New(t.Context(), export.Config{Dir: t.TempDir(), Origin: "test", Sinks: sinks, Head: func() uint64 { return 7 }})
		if err != nil {
			t.Fatal(err)
		}
		if err := watchExports(tel.meters, exports); err != nil {
			t.Fatal(err)
		}
		return metricsdoc.Scraped(t, page(t, tel.page))
	}
	all := shown(export.SinkConfig{Name: "a", To: sink.Config{File: &sink.FileConfig{Path: filepath.Join(t.TempDir(), "a")}}})
	for name := range shown() { // those of any process
		delete(all, name)
	}
	metricsdoc.Check(t, "Export", all)
}
