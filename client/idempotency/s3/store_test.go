package s3_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	driver "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/s3"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/memorybucket"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
)

func open(t testing.TB, address string, o s3.Options) *s3.Store {
	t.Helper()
	o.Bucket = servertest.S3Bucket
	s := must.Get(s3.New(t.Context(), servertest.S3Client(address), o))(t)
	return s
}

func key(text string) idempotency.RecordKey {
	return idempotency.RecordKey{
		Scope: idempotency.Scope{Organization: "acme", Vault: "main"}, Namespace: "test", Key: text,
	}
}

func succeed(context.Context, *idempotency.Owner) ([]byte, error) { return []byte("done"), nil }

func TestSuite(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	shared := open(t, server.Address, s3.Options{Prefix: "suite"})
	storetest.Run(t, func(*testing.T) idempotency.Store { return shared })
}

// Two processes draw tokens from one object.
func TestSuiteOfTwo(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	stores := make(chan idempotency.Store, 2)
	stores <- open(t, server.Address, s3.Options{StoreKeys: true})
	stores <- open(t, server.Address, s3.Options{StoreKeys: true})
	storetest.Run(t, func(*testing.T) idempotency.Store {
		s := <-stores
		stores <- s
		return s
	})
}

func TestFaults(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	p := storefaults.Start(t, server.Address)
	storefaults.Run(t, p, open(t, p.Address, s3.Options{}))
}

// Other programs read the fields of an object; the key is present only on request.
func TestLayout(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	client := servertest.S3Client(server.Address)
	for _, withKeys := range []bool{false, true} {
		prefix := map[bool]string{false: "plain", true: "keys"}[withKeys]
		s := open(t, server.Address, s3.Options{Prefix: prefix, StoreKeys: withKeys})
		read := func() (name string, fields map[string]any) {
			t.Helper()
			list, err := client.ListObjectsV2(t.Context(), &driver.ListObjectsV2Input{
				Bucket: aws.String(servertest.S3Bucket), Prefix: aws.String(prefix + "/idempotency/"),
			})
			if err != nil || len(list.Contents) != 1 {
				t.Fatalf("%+v, %v", list, err)
			}
			o := must.Get(client.GetObject(t.Context(), &driver.GetObjectInput{
				Bucket: aws.String(servertest.S3Bucket), Key: list.Contents[0].Key,
			}))(t)
			defer o.Body.Close()
			must.Do(t, json.NewDecoder(o.Body).Decode(&fields))
			return *list.Contents[0].Key, fields
		}
		must.Get(idempotency.Do(t.Context(), s, key("order-4711"),
			func(context.Context, *idempotency.Owner) ([]byte, error) {
				if _, fields := read(); fields["status"] != "creating" || fields["state"] != "PENDING" {
					t.Errorf("during the work: %v", fields)
				}
				return nil, nil
			}))(t)
		name, fields := read()
		want := prefix + "/idempotency/acme/main/" + fields["key_hash"].(string) + ".json"
		if name != want || fields["scope"] != "acme/main" || fields["status"] != "ready" ||
			fields["state"] != "COMMITTED" {
			t.Errorf("%s: %v; want the name %s", name, fields, want)
		}
		if (fields["key"] == "order-4711") != withKeys {
			t.Errorf("the key is %v", fields["key"])
		}
	}
}

// A store that ignores a condition is refused.
func TestConditions(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"If-None-Match", "If-Match"} {
		b := new(memorybucket.Bucket)
		client := b.Client(func(r *http.Request) (*http.Response, error) {
			r.Header.Del(header)
			return b.Answer(r)
		}, 1)
		check.Is(t, check.Err(s3.New(t.Context(), client, s3.Options{Bucket: memorybucket.Name})), s3.ErrNoConditions,
			"%s", header)
	}
}

// The lifecycle rule must not delete a record while it is needed.
func TestLongTTL(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	s := open(t, server.Address, s3.Options{MaxTTL: time.Hour})
	_, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{
		Key: key("k"), AttemptID: idempotency.NewAttemptID(), TTL: 2 * time.Hour,
	})
	if invalid, ok := errors.AsType[*idempotency.InvalidError](err); !ok || invalid.Field != "TTL" {
		t.Errorf("Reserve: %v", err)
	}
	_, err = s.Reserve(t.Context(), &idempotency.ReserveRequest{
		Key: key("k"), AttemptID: idempotency.NewAttemptID(), TTL: time.Second, ForgetAfter: idempotency.Never,
	})
	if invalid, ok := errors.AsType[*idempotency.InvalidError](err); !ok || invalid.Field != "ForgetAfter" {
		t.Errorf("Reserve of a key that is never forgotten: %v", err)
	}
}

func TestLifecycle(t *testing.T) {
	t.Parallel()
	for maxTTL, days := range map[time.Duration]int{0: 93, 100 * 24 * time.Hour: 133} {
		text := must.Get(s3.Lifecycle(s3.Options{Prefix: "p", MaxTTL: maxTTL}))(t)
		var rules struct {
			Rules []struct {
				ID, Status string
				Filter     struct{ Prefix string }
				Expiration struct{ Days int }
			}
		}
		must.Do(t, json.Unmarshal([]byte(text), &rules))
		got := map[string]int{}
		for _, r := range rules.Rules {
			got[r.Filter.Prefix] = r.Expiration.Days
		}
		want := map[string]int{"p/idempotency/": days, "p/idempotency-open/": days, "p/idempotency-probes/": 1}
		if !maps.Equal(got, want) {
			t.Errorf("with a TTL of %v: %v, want %v", maxTTL, got, want)
		}
	}
}

// An object gives the status of its key in one word.
func TestStatus(t *testing.T) {
	t.Parallel()
	b := new(memorybucket.Bucket)
	s := s3Of(t, b, nil, 0)
	says := func(state, status string) {
		t.Helper()
		for _, body := range b.Objects("idempotency/") {
			var o struct{ State, Status string }
			if err := json.Unmarshal(body, &o); err != nil || o.State != state || o.Status != status {
				t.Errorf("%+v, %v; want %s, %s", o, err, state, status)
			}
		}
	}
	own := func() *idempotency.Ownership {
		t.Helper()
		r := &idempotency.ReserveRequest{Key: key("k"), AttemptID: idempotency.NewAttemptID()}
		answer, err := s.Reserve(t.Context(), r)
		if err != nil || answer.Outcome != idempotency.Acquired {
			t.Fatalf("%+v, %v", answer, err)
		}
		return &idempotency.Ownership{Key: r.Key, Token: answer.Token, AttemptID: r.AttemptID}
	}
	must := func(_ *idempotency.Answer, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	owner := own()
	says("PENDING", "creating")
	must(s.Release(t.Context(), owner))
	says("RELEASED", "released")
	owner = own()
	must(s.Heartbeat(t.Context(), owner, idempotency.EndLease))
	says("INDETERMINATE", "unknown")
	must(s.Complete(t.Context(), owner, idempotency.Result{}))
	says("COMMITTED", "ready")
	must(s.Purge(t.Context(), &owner.Key))
	says("RELEASED", "released")
	must(s.Reject(t.Context(), own(), idempotency.Result{}))
	says("REJECTED", "ready")
}

// Tokens do not restart even if their object was deleted, or is an old one from a backup.
func TestDeletedCounter(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	first := reserve(t, open(t, server.Address, s3.Options{}), "one")
	must.Get(servertest.S3Client(server.Address).DeleteObject(t.Context(), &driver.DeleteObjectInput{
		Bucket: aws.String(servertest.S3Bucket), Key: aws.String("idempotency-tokens.json"),
	}))(t)
	// The counter starts from the store's clock, which has whole seconds.
	if second := reserve(t, open(t, server.Address, s3.Options{}), "two"); second < first {
		t.Errorf("token %d after %d", second, first)
	}
	must.Get(servertest.S3Client(server.Address).PutObject(t.Context(), &driver.PutObjectInput{
		Bucket: aws.String(servertest.S3Bucket), Key: aws.String("idempotency-tokens.json"),
		Body: strings.NewReader(`{"last":7}`),
	}))(t)
	if third := reserve(t, open(t, server.Address, s3.Options{}), "three"); third < first {
		t.Errorf("token %d after %d and a restore", third, first)
	}
}

func reserve(t *testing.T, s idempotency.Store, k string) (token uint64) {
	t.Helper()
	r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{Key: key(k), AttemptID: idempotency.NewAttemptID()})
	if err != nil || r.Outcome != idempotency.Acquired {
		t.Fatalf("%+v, %v", r, err)
	}
	return r.Token
}

func TestKill(t *testing.T) {
	t.Parallel()
	server := servertest.S3(t)
	s := open(t, server.Address, s3.Options{})
	must.Get(idempotency.Do(t.Context(), s, key("done"), succeed))(t)
	server.Kill()
	server.Start()
	if done, err := idempotency.Do(t.Context(), s, key("done"), succeed); err != nil || !done.Replayed {
		t.Errorf("%+v, %v", done, err)
	}
}

// Mistakes in a URL are reported.
func TestURL(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"s3:bucket", "s3:///prefix", "http://bucket", "s3://b?unknown=1", "s3://b?max_ttl=x",
		"s3://b?region=r&max_ttl=999999h",
	} {
		if _, err := s3.Open(t.Context(), address, s3.Options{}); err == nil {
			t.Errorf("%s is taken", address)
		}
	}
}

func BenchmarkStore(b *testing.B) {
	address := servertest.S3(b).Address
	c := servertest.S3Client(address)
	storetest.Benchmark(b, open(b, address, s3.Options{}), func(ctx context.Context, key string) error {
		_, err := c.PutObject(ctx, &driver.PutObjectInput{
			Bucket: aws.String(servertest.S3Bucket), Key: aws.String("bare/" + key), Body: strings.NewReader("{}\n"),
			IfNoneMatch: aws.String("*"),
		})
		return err
	})
}
