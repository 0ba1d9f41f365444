package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

func TestFrames(t *testing.T) {
	t.Parallel()
	output := "Script started on a day\nseed 1\r\n1 s\r\n  a\r\n\x1b[2A\x1b[J2 s\r\n  b\r\n\x1b[2A\x1b[Jtable\r\n"
	pieces := []string{"seed 1\r\n", "1 s\r\n  a\r\n", "", "\x1b[2A\x1b[J2 s\r\n  b\r\n", "\x1b[2A\x1b[Jtable\r\n"}
	var timing strings.Builder
	for _, piece := range pieces {
		fmt.Fprintf(&timing, "0.5 %d\n", len(piece))
	}
	got := must.Get(frames("$ demo", []byte(output), []byte(timing.String())))(t)
	want := []frame{
		{0, []string{"$ demo"}}, {0.5, []string{"$ demo", "seed 1"}}, {1, []string{"$ demo", "seed 1", "1 s", "  a"}},
		{2, []string{"$ demo", "seed 1", "2 s", "  b"}}, {2.5, []string{"$ demo", "seed 1", "table"}},
	}
	same := func(a, b frame) bool { return a.at == b.at && slices.Equal(a.lines, b.lines) }
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("want %v\ngot %v", want, got)
	}
	for _, bad := range [][2]string{{"x", "0.1 2\n"}, {"x", "soon 1\n"}, {"\x1b[2K", "0.1 4\n"}} {
		if _, err := frames("$", []byte(bad[0]), []byte(bad[1])); err == nil {
			t.Errorf("%q: want an error", bad)
		}
	}
}

// TestRecording: the picture that the README shows is small, sound XML, and ends with the table.
func TestRecording(t *testing.T) {
	t.Parallel()
	for name, picture := range map[string]string{"a frame": render([]frame{{0, []string{"a < b"}}}),
		"demo.svg": committed(t)} {
		if len(picture) > 200<<10 {
			t.Errorf("%s has %d bytes", name, len(picture))
		}
		decoder := xml.NewDecoder(strings.NewReader(picture))
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			// A browser shows nothing of an element that has an attribute twice; the decoder takes it.
			if element, ok := token.(xml.StartElement); ok {
				seen := map[xml.Name]bool{}
				for _, attribute := range element.Attr {
					if seen[attribute.Name] {
						t.Errorf("%s: the element %s has %s twice", name, element.Name.Local, attribute.Name.Local)
					}
					seen[attribute.Name] = true
				}
			}
		}
		check.Equal(t, strings.Count(picture, `<g visibility="visible">`), 1,
			"%s: want one frame that is visible without animation: got %v", name)
	}
	_, last, _ := strings.Cut(committed(t), `<g visibility="visible">`)
	for _, row := range []string{"acknowledged", "found by audit", "duplicates", "lost"} {
		check.Contains(t, last, ">"+row, "the last frame has no row %q", row)
	}
}

func committed(t *testing.T) string {
	t.Helper()
	b := must.Get(os.ReadFile("../demo.svg"))(t)
	return string(b)
}
