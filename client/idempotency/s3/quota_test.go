package s3_test

import (
	"errors"
	"path"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	driver "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/s3"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
)

func TestQuota(t *testing.T) {
	t.Parallel()
	storetest.RunQuota(t, open(t, servertest.S3(t).Address, s3.Options{Prefix: "p", MaxOpen: 2}))
}

// The suite on a store with a quota, which must not count too many keys. No mark of a finished key remains.
func TestSuiteWithQuota(t *testing.T) {
	t.Parallel()
	shared := open(t, servertest.S3(t).Address, s3.Options{MaxOpen: 1_000_000})
	storetest.Run(t, func(*testing.T) idempotency.Store { return shared })
}

// try reserves a key, and reports whether the quota admitted it.
func try(t *testing.T, s *s3.Store, k string) bool {
	t.Helper()
	r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{Key: key(k), AttemptID: idempotency.NewAttemptID()})
	if _, refused := errors.AsType[*idempotency.QuotaError](err); refused {
		return false
	}
	if err != nil || r.Outcome != idempotency.Acquired {
		t.Errorf("%+v, %v", r, err)
	}
	return true
}

// marks returns the objects in the folders of marks.
func marks(t *testing.T, server *servertest.Server) []string {
	t.Helper()
	list := must.Get(servertest.S3Client(server.Address).ListObjectsV2(t.Context(), &driver.ListObjectsV2Input{
		Bucket: aws.String(servertest.S3Bucket), Prefix: aws.String("idempotency-open/"),
	}))(t)
	var names []string
	for _, o := range list.Contents {
		names = append(names, *o.Key)
	}
	return names
}

// Concurrent reservations may refuse each other, but never exceed the limit together.
func TestQuotaRace(t *testing.T) {
	t.Parallel()
	const most, callers = 3, 16
	server := servertest.S3(t)
	s := open(t, server.Address, s3.Options{MaxOpen: most})
	var acquired atomic.Int32
	var group sync.WaitGroup
	for range callers {
		// Ends with its call; the Wait below joins it.
		group.Go(func() {
			if try(t, s, idempotency.NewKey("k", 1)) {
				acquired.Add(1)
			}
		})
	}
	group.Wait()
	if n := acquired.Load(); n > most {
		t.Errorf("%d keys are open, of at most %d", n, most)
	}
	// The refused reservations have left nothing behind.
	for acquired.Load() < most {
		if !try(t, s, idempotency.NewKey("k", 1)) {
			t.Fatalf("refused with %d open keys and the marks %q", acquired.Load(), marks(t, server))
		}
		acquired.Add(1)
	}
	if try(t, s, "more") {
		t.Error("a key too many is admitted")
	}
}

// Marks that a crash has left are found when they matter: one without a record, and one of a finished key.
func TestQuotaAfterACrash(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	client := servertest.S3Client(server.Address)
	s := open(t, server.Address, s3.Options{MaxOpen: 2})
	put := func(name string) {
		t.Helper()
		must.Get(client.PutObject(t.Context(), &driver.PutObjectInput{
			Bucket: aws.String(servertest.S3Bucket), Key: aws.String(name),
		}))(t)
	}
	request := &idempotency.ReserveRequest{Key: key("finished"), AttemptID: idempotency.NewAttemptID()}
	r := must.Get(s.Reserve(t.Context(), request))(t)
	names := marks(t, server)
	if len(names) != 1 {
		t.Fatalf("the marks are %q", names)
	}
	owner := &idempotency.Ownership{Key: request.Key, Token: r.Token, AttemptID: request.AttemptID}
	if a, err := s.Complete(t.Context(), owner, idempotency.Result{}); err != nil || a.Outcome != idempotency.OK {
		t.Fatalf("%+v, %v", a, err)
	}
	if left := marks(t, server); len(left) != 0 {
		t.Errorf("a finished key has left %q", left)
	}
	finished, absent := names[0], path.Dir(names[0])+"/0"+path.Base(names[0])[1:]
	if absent == finished {
		absent = path.Dir(names[0]) + "/1" + path.Base(names[0])[1:]
	}
	put(finished)
	put(absent)
	if try(t, s, "early") {
		t.Error("a mark that may be ahead of its record was swept")
	}
	s.SettleAtOnce()
	if !try(t, s, "one") || !try(t, s, "two") {
		t.Errorf("refused with the marks %q", marks(t, server))
	}
	if try(t, s, "three") {
		t.Error("a key too many is admitted")
	}
	if left := marks(t, server); len(left) != 2 {
		t.Errorf("the marks are %q", left)
	}
}

func TestQuotaMistakes(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	for _, wrong := range []string{"many", "-1"} {
		if _, err := s3.Open(t.Context(), server.URL+"&max_open="+wrong, s3.Options{}); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}
