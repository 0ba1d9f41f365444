package harness_test

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/bench/harness"
)

// wellFormed fails the test unless the text is XML, and counts its elements.
func wellFormed(t *testing.T, svg string) map[string]int {
	t.Helper()
	count := make(map[string]int)
	decoder := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return count
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		if element, ok := token.(xml.StartElement); ok {
			count[element.Name.Local]++
			for _, attribute := range element.Attr {
				if strings.Contains(attribute.Value, "NaN") || strings.Contains(attribute.Value, "Inf") {
					t.Fatalf("%s=%q", attribute.Name.Local, attribute.Value)
				}
			}
		}
	}
}

func TestChart(t *testing.T) {
	t.Parallel()
	three := []harness.Point{{X: 1, Y: 10}, {X: 64, Y: 1000}, {X: 256, Y: 20_000}}
	for name, test := range map[string]struct {
		chart  harness.Chart
		points int
	}{
		"linear":      {harness.Chart{Lines: []harness.Series{{Name: "a", Points: three}}}, 3},
		"logarithmic": {harness.Chart{LogX: true, LogY: true, Lines: []harness.Series{{Name: "a", Points: three}}}, 3},
		"zero has no log": {
			harness.Chart{LogY: true, Lines: []harness.Series{{Points: []harness.Point{{X: 1, Y: 0}, {X: 2, Y: 5}}}}},
			1},
		"not a number": {
			harness.Chart{Lines: []harness.Series{{Points: []harness.Point{{X: 1, Y: math.NaN()}, {X: 2, Y: 5}}}}}, 1},
		"one point": {harness.Chart{LogX: true, Lines: []harness.Series{{Points: three[:1]}}}, 1},
		"nothing":   {harness.Chart{Lines: []harness.Series{{Name: "none"}}}, 0},
		"names are escaped": {harness.Chart{Title: `<"&>`, Lines: []harness.Series{{Name: "</svg>", Points: three}}},
			3},
		"more lines than inks": {harness.Chart{Lines: make([]harness.Series, 20)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svg := test.chart.SVG()
			if count := wellFormed(t, svg); count["circle"] != test.points {
				t.Errorf("want %d points, got %d", test.points, count["circle"])
			}
			if svg != test.chart.SVG() {
				t.Error("the same chart gave other bytes")
			}
		})
	}
}
