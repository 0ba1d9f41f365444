// Package words keeps phrases out of comments, help texts and documents that do not read as plain English.
package words

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

const root = "../.."

// never are phrases with a plainer form everywhere.
const never = `of before|in vain|but for|whoever|for ever|stands for|until then|from then on|has room for|thereby|` +
	`whereby|hereby|herein|and then some|as ever|no more of them|lies in`

// seldom are phrases that are right in some sentences.
const seldom = `behind|so many|nobody|somebody|that comes|who waits|goes on|the same for|of its own|by itself|` +
	`what is (left|there|wrong|missing)|is there|are there|at a time|of theirs|of ours|besides|is worth|` +
	`knows nothing|says nothing|is meant|lets in`

var (
	neverWords  = regexp.MustCompile(`\b(` + never + `)\b`)
	anyWords    = regexp.MustCompile(`\b(` + never + `|` + seldom + `)\b`)
	comment     = regexp.MustCompile(`(?:^\s*|\s)//(.*)`)
	generated   = regexp.MustCompile(`_test\.go$|\.pb\.go$|\.connect\.go$`)
	skippedDirs = []string{".git", "node_modules", "testdata", "bin", "results", "dist"}
	documents   = regexp.MustCompile(`^(README|CHANGELOG)\.md$|^docs/.*\.md$|^bench/README\.md$`)
	helpTag     = regexp.MustCompile("help:\"([^\"]*)\"")
)

// perThousand is how many of the phrases a package may have in a thousand lines of comments.
const perThousand = 5

// walk calls visit with the lines of each file.
func walk(t *testing.T, visit func(path string, lines []string)) {
	t.Helper()
	must.Do(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && slices.Contains(skippedDirs, entry.Name()) {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".md") {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		visit(filepath.ToSlash(name), strings.Split(string(content), "\n"))
		return err
	}))
}

func TestComments(t *testing.T) {
	t.Parallel()
	total, found := map[string]int{}, map[string][]string{}
	walk(t, func(path string, lines []string) {
		dir := filepath.ToSlash(filepath.Dir(path))
		if !strings.HasSuffix(path, ".go") || generated.MatchString(path) || strings.HasPrefix(dir, "internal/words") {
			return
		}
		for i, line := range lines {
			if text := comment.FindStringSubmatch(line); text != nil {
				total[dir]++
				for _, word := range anyWords.FindAllString(text[1], -1) {
					found[dir] = append(found[dir], fmt.Sprintf("%s:%d: %s", path, i+1, word))
				}
			}
		}
	})
	for dir, list := range found {
		if most := max(1, total[dir]*perThousand/1000); len(list) > most {
			t.Errorf("%s: %d phrases in %d lines of comments, at most %d are allowed:\n%s", dir, len(list), total[dir],
				most, strings.Join(list, "\n"))
		}
	}
}

func TestDocumentsAndHelp(t *testing.T) {
	t.Parallel()
	walk(t, func(path string, lines []string) {
		for i, line := range lines {
			text := line
			if strings.HasSuffix(path, ".go") {
				tag := helpTag.FindStringSubmatch(line)
				if tag == nil || generated.MatchString(path) {
					continue
				}
				text = tag[1]
			} else if !documents.MatchString(path) {
				continue
			}
			check.Equal(t, neverWords.FindString(text), "", "%s:%d: %q", path, i+1)
		}
	})
}
