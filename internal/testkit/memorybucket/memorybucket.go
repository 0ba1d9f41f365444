// Package memorybucket is an S3 bucket in memory, for tests and examples. It implements what package bucket uses:
// objects with ETags, conditional writes, deletes and lists. Like S3 it processes each request atomically.
package memorybucket

import (
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// Name is the name of the bucket.
const Name = "bucket"

// Bucket is an http.Handler. The zero value is an empty bucket.
type Bucket struct {
	mu      sync.Mutex
	objects map[string]object
	version int
}

type object struct {
	body    []byte
	etag    string
	written time.Time
}

// Doer makes requests.
type Doer func(r *http.Request) (*http.Response, error)

// Do implements s3.HTTPClient.
func (d Doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

// Client returns a client that sends its requests with do, making up to the given number of attempts for each. If do is
// nil, requests go directly to the bucket.
func (b *Bucket) Client(do Doer, attempts int) *s3.Client {
	if do == nil {
		do = b.Answer
	}
	return s3.New(s3.Options{
		HTTPClient: do, BaseEndpoint: aws.String("http://memory"), UsePathStyle: true, Region: "none",
		Credentials:                credentials.NewStaticCredentialsProvider("none", "none", ""),
		RetryMaxAttempts:           attempts,
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
	})
}

// Answer answers a request.
func (b *Bucket) Answer(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	return w.Result(), nil
}

// Objects returns copies of the bodies of the objects whose names begin with prefix.
func (b *Bucket) Objects(prefix string) map[string][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := map[string][]byte{}
	for name, o := range b.objects {
		if strings.HasPrefix(name, prefix) {
			found[name] = o.body
		}
	}
	return found
}

// ServeHTTP implements http.Handler.
func (b *Bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
	_, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	o, found := b.objects[name]
	switch {
	case r.Method == http.MethodGet && name == "":
		b.list(w, r)
	case r.Method == http.MethodGet && found:
		w.Header().Set("ETag", o.etag)
		_, _ = w.Write(o.body)
	case r.Method == http.MethodPut:
		b.put(w, r, name, body)
	case r.Method == http.MethodDelete:
		delete(b.objects, name)
		w.WriteHeader(http.StatusNoContent)
	default:
		fail(w, http.StatusNotFound, "NoSuchKey")
	}
}

// put writes an object if the conditions hold. The caller holds mu.
func (b *Bucket) put(w http.ResponseWriter, r *http.Request, name string, body []byte) {
	o, found := b.objects[name]
	match := r.Header.Get("If-Match")
	switch {
	case match != "" && !found:
		fail(w, http.StatusNotFound, "NoSuchKey")
		return
	case match != "" && match != o.etag, r.Header.Get("If-None-Match") == "*" && found:
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	b.version++
	if b.objects == nil {
		b.objects = map[string]object{}
	}
	o = object{body, strconv.Quote(strconv.Itoa(b.version)), time.Now()}
	b.objects[name] = o
	w.Header().Set("ETag", o.etag)
}

// The answer to a list.
type (
	listing struct {
		XMLName  xml.Name `xml:"ListBucketResult"`
		Contents []content
	}
	content struct {
		Key          string
		LastModified string
	}
)

// list lists all objects of a folder in one response. The caller holds mu.
func (b *Bucket) list(w http.ResponseWriter, r *http.Request) {
	prefix, delimiter := r.URL.Query().Get("prefix"), r.URL.Query().Get("delimiter")
	var answer listing
	for _, name := range slices.Sorted(maps.Keys(b.objects)) {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok || delimiter != "" && strings.Contains(rest, delimiter) {
			continue
		}
		answer.Contents = append(answer.Contents, content{
			name, b.objects[name].written.UTC().Format("2006-01-02T15:04:05.000Z"),
		})
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(answer) // to a recorder or a connection, whose client notices a truncated response
}

// fail answers with an error of S3.
func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
}
