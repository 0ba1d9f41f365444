package datadir

import (
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/internal/format"
)

const exampleMarker = `{"format":1,"directory":"00112233445566778899aabbccddeeff",` +
	`"node":"00112233445566778899aabbccddeeff"}` + "\n"

// A marker has one form, and no checksum: so every other form is damage.
func TestMarkerHasOneForm(t *testing.T) {
	t.Parallel()
	d := &Directory{path: t.TempDir()}
	read := func(content string) error {
		must.Do(t, os.WriteFile(d.file(markerName), []byte(content), 0o600))
		return d.readMarker()
	}
	if err := read(exampleMarker); err != nil || hex.EncodeToString(d.identity) != "00112233445566778899aabbccddeeff" {
		t.Errorf("the example is read as %x, %v", d.identity, err)
	}
	newer := strings.Replace(exampleMarker, `"format":1`, `"format":2`, 1)
	if err := read(newer); !errors.Is(err, format.ErrVersion) || !strings.Contains(err.Error(), d.file(markerName)) {
		t.Errorf("a newer format: %v", err)
	}
	for _, content := range []string{
		newer, "", "null", "{}", exampleMarker[:len(exampleMarker)-1], exampleMarker + "\n", " " + exampleMarker,
		`{"format":1,"directory":"00112233445566778899AABBCCDDEEFF","node":"00112233445566778899AABBCCDDEEFF"}` + "\n",
		`{"format":1,"directory":"00112233445566778899aabbccddeeff","node":"00112233445566778899aabbccddeefe"}` + "\n",
		`{"format":1,"directory":"00112233445566778899aabbccddeeff"}` + "\n",
		exampleMarker[:len(exampleMarker)-2] + `,"more":1}` + "\n",
		`{"format":1,"directory":"0011","node":"0011"}` + "\n",
	} {
		if err := read(content); err == nil {
			t.Errorf("%q was taken for a marker", content)
		}
	}
}

// FuzzMarker: whatever is taken for a marker is what a new directory gets.
func FuzzMarker(f *testing.F) {
	f.Add([]byte(exampleMarker))
	f.Add([]byte(strings.Replace(exampleMarker, "1", "2", 1)))
	f.Add([]byte(`{"format":1,"Format":1,"directory":"\u0030"}`))
	d := &Directory{path: f.TempDir()}
	f.Fuzz(func(t *testing.T, content []byte) {
		must.Do(t, os.WriteFile(d.file(markerName), content, 0o600))
		d.identity = nil
		if d.readMarker() != nil {
			return
		}
		name := hex.EncodeToString(d.identity)
		if want := `{"format":1,"directory":"` + name + `","node":"` + name + `"}` + "\n"; len(name) != 32 ||
			string(content) != want {
			t.Errorf("%q was taken for a marker", content)
		}
	})
}
