package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/machine"
)

// scrubAll compares all pages with their checksums.
func scrubAll(s *Store) error {
	next, compared, err := s.Scrub(0, math.MaxInt)
	if err == nil && (next != 0 || compared == 0) {
		err = fmt.Errorf("%d pages compared, next %d", compared, next)
	}
	return err
}

// files are a state file and its sums.
type files struct{ state, sums []byte }

func readFiles(t *testing.T, path string) (f files) {
	t.Helper()
	var errState, errSums error
	f.state, errState = os.ReadFile(path)
	f.sums, errSums = os.ReadFile(SumsPath(path))
	must.Do(t, errors.Join(errState, errSums))
	return f
}

func (f files) write(t *testing.T, path string) {
	t.Helper()
	must.Do(t, errors.Join(os.WriteFile(path, f.state, 0o600), os.WriteFile(SumsPath(path), f.sums, 0o600)))
}

// changeSome puts some records of a store that has n.
func changeSome(t *testing.T, s *Store, n, step int, value string) {
	t.Helper()
	must.Do(t, s.Update(next(s), func(tx machine.Tx) error {
		for i := 0; i < n; i += step {
			if err := tx.Put(machine.TableStreams, recordKey(i), []byte(value)); err != nil {
				return err
			}
		}
		return nil
	}))
	flush(t, s)
}

// A crash may leave any part of what was written of the checksums, cut anywhere: the file opens, all
// pages that were in use before are still checked, and the next flush goes on from there.
func TestSumsSurviveACrashWhileTheyAreWritten(t *testing.T) {
	t.Parallel()
	const n = 30_000
	path := filled(t, n)
	s := reopen(t, path)
	changeSome(t, s, n, 1_000, "first")
	before := readFiles(t, path)
	changeSome(t, s, n, 1_500, "second")
	after := readFiles(t, path)
	must.Do(t, s.Close())
	if !bytes.HasPrefix(after.sums, before.sums) {
		t.Fatal("the checksums are in a new file")
	}
	const parts = 4
	part := (len(after.sums) - len(before.sums) + parts - 1) / parts
	old := oldPage(t, before.state, after.state)
	cuts := []int{0, 1, part / 2, part - 1}
	if testing.Short() {
		cuts = []int{0, part / 2}
	}
	for subset := range 1 << parts {
		for _, torn := range cuts {
			f := files{after.state, append(bytes.Clone(before.sums), make([]byte, len(after.sums)-len(before.sums))...)}
			for i := range parts {
				begin, end := len(before.sums)+i*part+torn, len(before.sums)+(i+1)*part
				if begin, end = min(begin, len(f.sums)), min(end, len(f.sums)); subset&(1<<i) != 0 {
					copy(f.sums[begin:end], after.sums[begin:])
				}
			}
			what := fmt.Sprintf("parts %b, torn at %d", subset, torn)
			f.write(t, path)
			s, err := Open(path, Options{Identity: testIdentity, NoSync: true})
			must.Do(t, err, "%s", what)
			changeSome(t, s, n, 2_000, "third")
			must.Do(t, errors.Join(scrubAll(s), s.Close()), "%s", what)
			if s, err = Open(path, Options{Identity: testIdentity, NoSync: true}); err == nil {
				err = errors.Join(scrubAll(s), s.Close())
			}
			must.Do(t, err, "%s, reopened", what)
			if torn == 0 {
				f.state = bytes.Clone(f.state)
				f.state[old] ^= 1
				f.write(t, path)
				if s, err := Open(path, Options{Identity: testIdentity}); !errors.Is(err, machine.ErrCorrupt) {
					t.Errorf("%s, and a bit is flipped in an old page: %v", what, errors.Join(err, s.Close()))
				}
			}
		}
	}
}

// oldPage returns the offset of a byte in a leaf that is the same in both states, and in use: of a
// record that is in both.
func oldPage(t *testing.T, before, after []byte) int {
	t.Helper()
	for _, p := range pagesOf(after) {
		page := after[p.at : p.at+testPageSize]
		if !p.branch && bytes.Equal(page, before[p.at:p.at+testPageSize]) && bytes.Contains(page, recordKey(501)) {
			return p.at + bytes.Index(page, recordKey(501)) + 20
		}
	}
	t.Fatal("every leaf was written")
	return 0
}

// Checksums of another time are refused, and of another directory.
func TestSumsOfAnotherFileAreRefused(t *testing.T) {
	t.Parallel()
	const n = 500
	path := filled(t, n)
	s := reopen(t, path)
	var history []files
	for i := range 5 {
		changeSome(t, s, n, 100, fmt.Sprint(i))
		history = append(history, readFiles(t, path))
	}
	must.Do(t, s.Close())
	// One behind is what a crash leaves, and one ahead is a state file whose newest meta page is
	// damaged; but not more.
	for _, of := range [][2]int{{4, 2}, {4, 0}, {1, 4}, {2, 4}} {
		files{history[of[0]].state, history[of[1]].sums}.write(t, path)
		refused(t, path, testIdentity, machine.ErrCorrupt, adviceRestore)
	}
	history[4].write(t, path)
	must.Do(t, os.Truncate(SumsPath(path), 0))
	refused(t, path, testIdentity, machine.ErrCorrupt, "seqledger verify")

	// An empty state of another directory has the same pages.
	other := filled(t, n)
	another := must.Get(Open(other+".x", Options{Create: true, Identity: []byte("another"), NoSync: true}))(t)
	must.Do(t, another.Close())
	files{history[4].state, readFiles(t, other+".x").sums}.write(t, path)
	refused(t, path, testIdentity, ErrForeign, adviceRestore)
}

// A state file whose newest meta page is damaged is at the flush before. Its checksums go back with
// it, and go on from there.
func TestSumsGoBackWithADamagedMetaPage(t *testing.T) {
	t.Parallel()
	const n = 500
	path := filled(t, n)
	s := reopen(t, path)
	changeSome(t, s, n, 100, "first")
	changeSome(t, s, n, 3, "second")
	must.Do(t, s.Close())
	f := readFiles(t, path)
	f.state[metaOf(t, path).Offset+30] ^= 1
	f.write(t, path)
	for i := range 3 {
		s := reopen(t, path)
		if i == 0 && get(t, s, machine.TableStreams, string(recordKey(0))) != "first" {
			t.Fatal("it is not at the flush before")
		}
		changeSome(t, s, n, 7+i, "third")
		must.Do(t, errors.Join(scrubAll(s), s.Close()), "%v", i)
	}
}

// A page that is damaged while the file is open is noticed when it is used for the first time, and by
// a scrub in any case. The error names page and table, and the store stops.
func TestDamageOfAnOpenFileIsNoticed(t *testing.T) {
	t.Parallel()
	const n = 20_000
	damage := func(s *Store, content []byte, used bool) (page uint64) {
		if used {
			get(t, s, machine.TableStreams, string(recordKey(n/2)))
		}
		at := bytes.LastIndex(content, recordKey(n/2))
		live, err := boltpage.New(content, testPageSize).Live(metaOf(t, s.path))
		if err != nil || live[at/testPageSize/64]>>(at/testPageSize%64)&1 == 0 {
			t.Fatal("the record is not where it was thought to be", err)
		}
		file, err := os.OpenFile(s.path, os.O_WRONLY, 0)
		if err == nil {
			_, err = file.WriteAt([]byte{content[at/testPageSize*testPageSize+11] ^ 1},
				int64(at/testPageSize*testPageSize+11))
			err = errors.Join(err, file.Close())
		}
		must.Do(t, err)
		return uint64(at / testPageSize)
	}
	path := filled(t, n)
	original := readFiles(t, path)
	for name, ask := range map[string]func(s *Store) error{
		"first use": func(s *Store) error {
			return s.View(func(r machine.Reader) error {
				_,
					err := r.Get(machine.TableStreams, recordKey(n/2))
				return err
			})
		},
		"scrub": scrubAll,
	} {
		original.write(t, path)
		s := reopen(t, path)
		page := damage(s, original.state, name == "scrub")
		err := ask(s)
		want := fmt.Sprintf("page %d is not what was written", page)
		if !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), fmt.Sprintf("table %d", machine.TableStreams)) || s.Err() == nil {
			t.Errorf("%s: %v, want %q; then %v", name, err, want, s.Err())
		}
		must.Do(t, s.Close())
	}
}

// However records come and go, all pages in use have their checksums, at any time and after each
// start.
func TestSumsFollowEveryFlush(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		path := fmt.Sprintf("%s/%d.db", dir, rand.Uint64())
		open := func() *Store {
			s := must.Get(Open(path, Options{Create: true, Identity: testIdentity, NoSync: true}))(t)
			return s
		}
		s := open()
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			from, size := rapid.IntRange(0, 3_000).Draw(t, "from"), rapid.IntRange(1, 1_000).Draw(t, "size")
			length := rapid.SampledFrom([]int{10, 100, 9_000}).Draw(t, "length")
			remove := rapid.IntRange(0, 2).Draw(t, "remove") == 0
			err := s.Update(next(s), func(tx machine.Tx) error {
				for i := from; i < from+size; i += 1 + length/1_000 {
					err := error(nil)
					if remove {
						err = tx.Delete(machine.TableStreams, recordKey(i))
					} else {
						err = tx.Put(machine.TableStreams, recordKey(i), make([]byte, length))
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
			if err == nil {
				err = s.Flush()
			}
			if err == nil {
				err = scrubAll(s)
			}
			if err == nil && rapid.Bool().Draw(t, "reopen") {
				err = s.Close()
				s = open()
			}
			must.Do(t, err)
		}
		must.Do(t, errors.Join(scrubAll(s), s.Close(), os.Remove(path), os.Remove(SumsPath(path))))
	})
}

// Reads, flushes and scrubs run beside each other, and no page is taken for a damaged one.
func TestSumsBesideReaders(t *testing.T) {
	t.Parallel()
	const n = 5_000
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	s := reopen(t, filled(t, n))
	done := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 3 {
		// Ends with done; waited for below.
		readers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 0))
			for {
				select {
				case <-done:
					return
				default:
				}
				err := s.View(func(r machine.Reader) error {
					for range 20 {
						if _, err := r.Get(machine.TableStreams, recordKey(random.IntN(n+100))); err != nil {
							return err
						}
					}
					return nil
				})
				if err == nil && i == 0 {
					_, _, err = s.Scrub(uint64(random.IntN(200)), 50)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range rounds {
		changeSome(t, s, n, 7+i%5, fmt.Sprint(i))
	}
	close(done)
	readers.Wait()
	must.Do(t, scrubAll(s))
}
