package s3_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	driver "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/s3"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
)

func TestList(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	for _, prefix := range []string{"", "a/b"} {
		storetest.RunList(t, open(t, server.Address, s3.Options{Prefix: prefix}))
	}
}

// A list continues after its first page.
func TestListOfMany(t *testing.T) {
	t.Parallel()
	const many = 120
	s := open(t, servertest.S3(t).Address, s3.Options{})
	for i := range many {
		reserve(t, s, fmt.Sprintf("k%d", i))
	}
	seen := map[[32]byte]bool{}
	for r, err := range s.List(t.Context(), &idempotency.ListRequest{Scope: key("").Scope}) {
		must.Do(t, err)
		seen[r.KeyHash] = true
	}
	if len(seen) != many {
		t.Errorf("%d records are listed, of %d", len(seen), many)
	}
}

// A value that is not a record is reported by the name of its object, and so is an unreachable bucket.
func TestListFails(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	s := open(t, server.Address, s3.Options{})
	reserve(t, s, "k")
	list := func() (last error) {
		for _, err := range s.List(t.Context(), &idempotency.ListRequest{Scope: key("").Scope}) {
			last = err
		}
		return last
	}
	for _, body := range []string{
		"{}", "null", "no object", `{"record":"YQ==","client_key_hash":"no hash"}`, `{"record":"YQ=="}`,
	} {
		must.Get(servertest.S3Client(server.Address).PutObject(t.Context(), &driver.PutObjectInput{
			Bucket: aws.String(servertest.S3Bucket), Key: aws.String("idempotency/acme/main/odd.json"),
			Body: strings.NewReader(body),
		}))(t)
		if err := list(); !errors.Is(err, idempotency.ErrDamaged) || !strings.Contains(err.Error(), "odd.json") {
			t.Errorf("%s: want the damaged object, got %v", body, err)
		}
	}
	server.Kill()
	if list() == nil {
		t.Error("a list without a server has no error")
	}
}
