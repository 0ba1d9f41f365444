package s3_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	driver "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/archive/s3"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

const ledger = 0xabc

func TestMain(m *testing.M) {
	for _, pair := range append(servertest.S3Environment(), "AWS_MAX_ATTEMPTS=1") {
		name, value, _ := strings.Cut(pair, "=")
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// sealedFiles makes block files in a directory.
func sealedFiles(t *testing.T, record int) (dir string, sealed []blockfile.SealedFile) {
	t.Helper()
	dir = t.TempDir()
	files := must.Get(blockfile.Open(blockfile.Options{
		Disk: blockfile.Directory{Path: dir, NoSync: true},
		Mark: blockfile.Mark{ID: [16]byte{1}, SealBytes: int64(3 * record)},
	}))(t)
	for i := range uint64(8) {
		must.Do(t, files.Append(i+1, bytes.Repeat([]byte{byte(i)}, record)))
	}
	files.Publish()
	sealed = files.Sealed(1 << 60)
	must.Do(t, files.Close())
	check.Equal(t, len(sealed) >= 2, true, "%d files are sealed", len(sealed))
	return dir, sealed
}

func add(t *testing.T, a *archive.Archive, dir string, f *blockfile.SealedFile) error {
	t.Helper()
	source := must.Get(blockfile.Directory{Path: dir}.OpenSealed(blockfile.Name(f.Number)))(t)
	defer func() { _ = source.Close() }()
	return a.Add(context.Background(), f, source)
}

func options(mark archive.Mark) archive.Options {
	return archive.Options{Ledger: ledger, Mark: mark, Random: rand.Reader}
}

// TestBucket: an archive in a bucket holds what was added, byte for byte, is found again, and is checked and read.
func TestBucket(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	ctx := t.Context()
	target := must.Get(s3.Open(ctx, server.URL))(t)
	check.Equal(t, target.String(), "s3://keys/test", "the target is %q")
	dir, sealed := sealedFiles(t, 1<<20)
	marked := options(archive.Mark{Ledger: ledger, ID: strings.Repeat("0", 32)})
	check.Is(t, check.Err(archive.Open(ctx, target, marked)), archive.ErrNone, "an empty bucket")
	a := must.Get(archive.Open(ctx, target, options(archive.Mark{})))(t)
	for i := range sealed {
		must.Do(t, add(t, a, dir, &sealed[i]))
		must.Do(t, add(t, must.Get(archive.Open(ctx, target, options(a.Mark())))(t), dir, &sealed[i]), "again")
	}
	check.Equal(t, must.Get(a.Confirm(ctx, sealed))(t), len(sealed), "%d files are confirmed")
	check.Equal(t, fmt.Sprint(must.Get(archive.Ledgers(ctx, target))(t)), "[0000000000000abc]", "ledgers: %v")
	report, err := archive.Verify(ctx, target, ledger, nil)
	if err != nil || len(report.Problems)+len(report.Unlisted) > 0 || int(report.Files) != len(sealed) {
		t.Errorf("verify: %+v, %v", report, err)
	}
	r := must.Get(archive.NewReader(ctx, target, ledger))(t)
	for i := range sealed {
		name := blockfile.Name(sealed[i].Number)
		f := must.Get(r.OpenSealed(name))(t)
		got := must.Get(io.ReadAll(io.NewSectionReader(f, 0, 1<<40)))(t)
		check.Equal(t, bytes.Equal(got, must.Get(os.ReadFile(dir+"/"+name))(t)), true, "%s is what was added", name)
		must.Do(t, f.Close())
	}
	files := must.Get(blockfile.OpenAllSealed(r, 1, uint64(len(sealed))))(t)
	reader, n := files.Reader(), 0
	must.Do(t, reader.Ascend(0, func(x blockfile.Record) bool { n++; return x.Check() == nil }))
	reader.Close()
	must.Do(t, files.Close())
	check.Equal(t, n, int(sealed[len(sealed)-1].Last), "%d records are read")
	check.Is(t, check.Err(target.Open(ctx, "absent")), fs.ErrNotExist, "an absent object")
}

// TestStatesInABucket: states of several parts are put into a bucket, read, and removed once they are old.
func TestStatesInABucket(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	target := must.Get(s3.Open(ctx, servertest.S3(t).URL))(t)
	must.Get(archive.Open(ctx, target, options(archive.Mark{})))(t)
	for index := uint64(1); index <= 3; index++ {
		content := bytes.Repeat([]byte{byte(index)}, 3<<20)
		info := backupfile.Info{LedgerID: ledger, Index: index, Time: int64(index), First: 1, From: 1}
		info.SetSizes([]int64{int64(len(content))})
		w := must.Get(archive.NewState(ctx, target, &info, 1<<20, rand.Reader))(t)
		out := must.Get(backupfile.NewWriter(w, &info, func(int) error { return nil }))(t)
		must.Get(out.Write(content))(t)
		must.Get(out.Finish())(t)
		must.Do(t, errors.Join(w.Flush(), w.Finish(), w.Abort(ctx))) // which does nothing by then
		must.Do(t, archive.RemoveStates(ctx, target, ledger, 1))
		states := must.Get(archive.States(ctx, target, ledger))(t)
		check.Equal(t, len(states), int(min(index, 2)), "%d states are left")
		var read bytes.Buffer
		got, err := archive.ReadState(ctx, target, states[len(states)-1], func(uint64) (io.Writer, error) {
			return &read, nil
		}, nil)
		if err != nil || got.Index != index || !bytes.Equal(read.Bytes(), content) {
			t.Errorf("the state of %d is read as %d bytes of %d: %v", index, read.Len(), got.Index, err)
		}
	}
	report, err := archive.Verify(ctx, target, ledger, nil)
	if err != nil || len(report.Problems)+len(report.Unlisted) > 0 || len(report.States) != 2 {
		t.Errorf("verify: %+v, %v", report, err)
	}
}

// TestDamagedObjects: what a bucket has lost, or has otherwise, is not confirmed, and verify names it.
func TestDamagedObjects(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	ctx, client := t.Context(), servertest.S3Client(server.Address)
	target := must.Get(s3.Open(ctx, server.URL))(t)
	dir, sealed := sealedFiles(t, 1<<20)
	a := must.Get(archive.Open(ctx, target, options(archive.Mark{})))(t)
	must.Do(t, errors.Join(add(t, a, dir, &sealed[0]), add(t, a, dir, &sealed[1])))
	objects := must.Get(target.List(ctx, "0000000000000abc/blocks/"))(t)
	key := aws.String("test/" + objects[1].Name)
	whole := must.Get(os.ReadFile(dir + "/" + blockfile.Name(2)))(t)
	put := func(content []byte) {
		t.Helper()
		_, err := client.PutObject(ctx, &driver.PutObjectInput{
			Bucket: aws.String(servertest.S3Bucket), Key: key, Body: bytes.NewReader(content),
		})
		must.Do(t, err)
	}
	verify := func() int {
		t.Helper()
		return len(must.Get(archive.Verify(ctx, target, ledger, nil))(t).Problems)
	}
	whole[len(whole)/2] ^= 1
	put(whole)
	check.Equal(t, verify(), 1, "%d problems with a flipped bit")
	put(whole[:100])
	check.Equal(t, verify(), 1, "%d problems with an object that was cut")
	n, err := a.Confirm(ctx, sealed[:2])
	if n != 1 || err == nil {
		t.Errorf("%d are confirmed: %v", n, err)
	}
	_, err = client.DeleteObject(ctx, &driver.DeleteObjectInput{Bucket: aws.String(servertest.S3Bucket), Key: key})
	must.Do(t, err)
	if n, err = a.Confirm(ctx, sealed[:2]); n != 1 || err == nil {
		t.Errorf("%d are confirmed: %v", n, err)
	}
	must.Do(t, add(t, a, dir, &sealed[1]))
	check.Equal(t, must.Get(a.Confirm(ctx, sealed[:2]))(t), 2, "%d are confirmed")
}

// badStore passes requests to a store until it is down: it then answers 503, or loses the answers.
type badStore struct {
	mu     sync.Mutex
	left   int // requests until it is down; negative for never
	loses  bool
	flips  bool // a bit of each answer with a part of an object
	failed bool // a request
	behind http.Handler
}

func (b *badStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	down := b.left == 0
	b.failed = b.failed || down
	if b.left > 0 {
		b.left--
	}
	loses, flips := b.loses, b.flips
	b.mu.Unlock()
	switch {
	case down && !loses:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case down:
		b.behind.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case flips && r.Method == http.MethodGet && r.Header.Get("Range") != "":
		answer := httptest.NewRecorder()
		b.behind.ServeHTTP(answer, r)
		content := answer.Body.Bytes()
		content[len(content)/2] ^= 1
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		w.WriteHeader(answer.Code)
		_, _ = w.Write(content)
		return
	}
	b.behind.ServeHTTP(w, r)
}

// set sets how the store is from now on, and returns whether a request has failed.
func (b *badStore) set(left int, loses, flips bool) (failed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	failed = b.failed
	b.left, b.loses, b.flips, b.failed = left, loses, flips, false
	return failed
}

func bad(t *testing.T) (*badStore, archive.Target) {
	t.Helper()
	server := servertest.S3(t)
	behind := must.Get(url.Parse("http://" + server.Address))(t)
	b := &badStore{left: -1, behind: httputil.NewSingleHostReverseProxy(behind)}
	front := httptest.NewServer(b)
	t.Cleanup(front.Close)
	return b, must.Get(s3.Open(t.Context(), strings.Replace(server.URL, "http://"+server.Address, front.URL, 1)))(t)
}

// TestEveryRequestMayFail: with which request ever a store goes away, or begins to lose its answers, the archive is
// made and filled once it is back.
func TestEveryRequestMayFail(t *testing.T) {
	t.Parallel()
	b, target := bad(t)
	ctx := t.Context()
	dir, sealed := sealedFiles(t, 1000)
	for i := 0; ; i++ {
		b.set(i/2, i%2 == 1, false)
		o := archive.Options{Ledger: ledger + machine.LedgerID(i), Random: rand.Reader}
		a, err := archive.Open(ctx, target, o)
		if err == nil {
			err = errors.Join(add(t, a, dir, &sealed[0]), add(t, a, dir, &sealed[1]))
		}
		if err == nil {
			_, err = a.Confirm(ctx, sealed[:2])
		}
		failed := b.set(-1, false, false)
		if check.Equal(t, err != nil, failed, "request %d: %v", i/2, err); !failed {
			t.Logf("%d requests", i/2)
			break
		}
		check.Equal(t, errors.Is(err, archive.ErrOther), false, "request %d: %v", i/2, err)
		if i%4 > 1 || a == nil {
			a = must.Get(archive.Open(ctx, target, o))(t)
		}
		must.Do(t, errors.Join(add(t, a, dir, &sealed[0]), add(t, a, dir, &sealed[1])), "request %d", i/2)
		check.Equal(t, must.Get(a.Confirm(ctx, sealed[:2]))(t), 2, "%d files are confirmed")
		report, err := archive.Verify(ctx, target, o.Ledger, nil)
		if err != nil || len(report.Problems) > 0 || report.Files != 2 {
			t.Errorf("request %d: %+v, %v", i/2, report, err)
		}
	}
}

// TestPutIsReadBack: what a store does not give back as it was put is no object.
func TestPutIsReadBack(t *testing.T) {
	t.Parallel()
	b, target := bad(t)
	dir, sealed := sealedFiles(t, 1000)
	a := must.Get(archive.Open(t.Context(), target, options(archive.Mark{})))(t)
	b.set(-1, false, true)
	if err := add(t, a, dir, &sealed[0]); err == nil || a.Has(&sealed[0]) {
		t.Errorf("it was added: %v", err)
	}
	b.set(-1, false, false)
	check.Equal(t, len(must.Get(target.List(t.Context(), "0000000000000abc/blocks/"))(t)), 0, "%d objects are left")
	must.Do(t, add(t, a, dir, &sealed[0]))
}

// TestTwoMakeOne: of two nodes that make an archive at once, whichever requests come between, the second takes over
// what the first has made.
func TestTwoMakeOne(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for before := 1; ; before++ {
		server := servertest.S3(t)
		behind := must.Get(url.Parse("http://" + server.Address))(t)
		proxy, requests := httputil.NewSingleHostReverseProxy(behind), 0
		var first *archive.Archive
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if requests++; requests == before {
				first, _ = archive.Open(ctx, must.Get(s3.Open(ctx, server.URL))(t), options(archive.Mark{}))
			}
			proxy.ServeHTTP(w, r)
		}))
		url := strings.Replace(server.URL, "http://"+server.Address, front.URL, 1)
		second, err := archive.Open(ctx, must.Get(s3.Open(ctx, url))(t), options(archive.Mark{}))
		front.Close()
		must.Do(t, err, "the other one made it before request %d", before)
		if first == nil {
			break
		}
		must.Do(t, first.Check(ctx), "the other one made it before request %d", before)
		check.Equal(t, second.Mark(), first.Mark(), "the archive, made before request %d, is %v", before)
	}
}

// answering returns a target of a store that answers as it is told.
func answering(t *testing.T, answer http.HandlerFunc) *s3.Target {
	t.Helper()
	front := httptest.NewServer(answer)
	t.Cleanup(front.Close)
	return must.Get(s3.Open(t.Context(), "s3://keys/test?region=x&path_style=true&endpoint="+front.URL))(t)
}

// TestListOfNonsense: a list with names that were not asked for, or without an end, is an error.
func TestListOfNonsense(t *testing.T) {
	t.Parallel()
	for _, list := range []string{
		"<Contents><Key>x</Key></Contents>", "<CommonPrefixes><Prefix>y</Prefix></CommonPrefixes>",
		"<IsTruncated>true</IsTruncated><NextContinuationToken>z</NextContinuationToken>",
	} {
		target := answering(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<ListBucketResult>"+list+"</ListBucketResult>")
		})
		found, err := target.List(t.Context(), "0000000000000abc/blocks/")
		if err == nil {
			t.Errorf("%s is %v", list, found)
		}
	}
}
