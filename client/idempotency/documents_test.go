package idempotency_test

import (
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

func document(t *testing.T, name string) string {
	t.Helper()
	content := must.Get(os.ReadFile("../../docs/" + name))(t)
	return string(content)
}

var codeSection = regexp.MustCompile(`(?m)^### ([a-z-]+)\n\n(.*)$`)

// The page that problems link to has an anchor for each code, with its status, action, Connect code and title, and
// every header of a response.
func TestTheCodesAreDocumented(t *testing.T) {
	t.Parallel()
	page := document(t, "codes.md")
	if !strings.HasSuffix(idempotency.Documentation, "/docs/codes.md") {
		t.Error("problems link to another page: ", idempotency.Documentation)
	}
	common, _, _ := strings.Cut(page, "## Of the gateway alone")
	lines := idempotency.CodeLines()
	for _, section := range codeSection.FindAllStringSubmatch(common, -1) {
		if code, line := section[1], section[2]; lines[code] != line {
			t.Errorf("%s: the page has %q, want %q", code, line, lines[code])
		}
		delete(lines, section[1])
	}
	for code := range lines {
		t.Errorf("the page has no section %s", code)
	}
	for _, name := range append(slices.Clone(idempotency.ExposedHeaders), idempotency.HeaderAttempt,
		idempotency.HeaderFence) {
		check.Contains(t, page, "`"+name+"`", "the page does not have the header %s", name)
	}
}

// The list of the headers that a replay has is that of the code.
func TestTheStoredHeadersAreDocumented(t *testing.T) {
	t.Parallel()
	_, list, found := strings.Cut(document(t, "keys.md"), "A replay has these headers of the first response:")
	list, _, ended := strings.Cut(list, ".\n")
	if !found || !ended {
		t.Fatal("keys.md has no list of stored headers")
	}
	var names []string
	for _, name := range strings.FieldsFunc(list, func(c rune) bool { return strings.ContainsRune("`, \n", c) }) {
		if name != "and" {
			names = append(names, http.CanonicalHeaderKey(name))
		}
	}
	slices.Sort(names)
	check.EqualSlices(t, names, slices.Sorted(slices.Values(idempotency.StoredHeaderNames)), "keys.md lists %v")
}
