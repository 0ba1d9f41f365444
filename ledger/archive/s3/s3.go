// Package s3 keeps archives in a bucket of an S3 store. Credentials are found as by other programs that use the AWS
// SDK: in the environment, in files, or from the machine's role.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/seqledger/seqledger/internal/bucket"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/blockfile"
)

// Target is a part of a bucket.
type Target struct {
	objects  *bucket.Objects
	patience time.Duration // after which a request is given up of which no byte has moved
}

// patience is far longer than a store takes that answers, and the repeats of a request, and shorter than the time after
// which the server tells that the archive hangs.
const patience = 2 * time.Minute

var errSilent = errors.New("the store has not answered for minutes")

// Open returns the target of a URL of the form s3://BUCKET/PREFIX?region=REGION&endpoint=URL&path_style=true. It makes
// no request.
func Open(ctx context.Context, url string) (*Target, error) {
	objects, _, err := bucket.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	return &Target{objects, patience}, nil
}

// String implements [archive.Target].
func (t *Target) String() string {
	s := "s3://" + t.objects.Bucket
	if t.objects.Prefix != "" {
		s += "/" + t.objects.Prefix
	}
	return s
}

// moved is called when bytes of a request or of its answer have moved.
type moved func()

// Write implements [io.Writer].
func (m moved) Write(b []byte) (int, error) {
	m()
	return len(b), nil
}

// watch returns a context for a request, which ends once nothing has moved for long: a connection may stay silent for
// good, and nothing else would end the wait for it.
func (t *Target) watch(ctx context.Context) (watched context.Context, m moved, end func()) {
	watched, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(t.patience, func() { cancel(errSilent) })
	return watched, func() { timer.Reset(t.patience) }, func() { timer.Stop(); cancel(nil) }
}

// failed returns the error of a request.
func (t *Target) failed(watched context.Context, what string, err error) error {
	return fmt.Errorf("%s in %s: %w", what, t, cmp.Or(context.Cause(watched), err))
}

// Put implements [archive.Target]. It looks for the object first, because the answer to an earlier Put may be lost, and
// a store that refuses a request need not read its body. It deletes what is not read as it was put, and nothing that
// was there before: two nodes that make FORMAT at once put different ones.
func (t *Target) Put(ctx context.Context, name string, r io.ReaderAt, size int64, sum [sha256.Size]byte) error {
	err := t.readBack(ctx, name, size, sum)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	watched, m, end := t.watch(ctx)
	defer end()
	content := io.NewSectionReader(r, 0, size)
	_, err = t.objects.Client.PutObject(watched, &s3.PutObjectInput{
		Bucket: &t.objects.Bucket, Key: t.objects.Name(name), Body: struct {
			io.Reader
			io.Seeker
		}{io.TeeReader(content, m), content},
		ContentLength: &size, ContentType: aws.String("application/octet-stream"), IfNoneMatch: aws.String("*"),
	})
	if err != nil && status(err) != http.StatusPreconditionFailed { // which another process was first with
		return t.failed(watched, "put "+name, err)
	}
	wrong := t.readBack(ctx, name, size, sum)
	if errors.Is(wrong, errOtherwise) && err == nil {
		wrong = errors.Join(wrong, t.Delete(ctx, name)) // so that the next Put makes it again
	}
	return wrong
}

var errOtherwise = errors.New("it is not read as it was to be written; if it stays so remove it, and it is made again")

// readBack returns an error unless an object has the given content.
func (t *Target) readBack(ctx context.Context, name string, size int64, sum [sha256.Size]byte) error {
	f, err := t.Open(ctx, name)
	if err != nil {
		return err
	}
	h := sha256.New()
	n, err := io.Copy(h, io.NewSectionReader(f, 0, size+1))
	if err == nil && (n != size || [sha256.Size]byte(h.Sum(nil)) != sum) {
		err = fmt.Errorf("%s in %s: %w", name, t, errOtherwise)
	}
	return errors.Join(err, f.Close())
}

// Open implements [archive.Target].
func (t *Target) Open(ctx context.Context, name string) (blockfile.File, error) {
	watched, _, end := t.watch(ctx)
	defer end()
	head, err := t.objects.Client.HeadObject(watched, &s3.HeadObjectInput{
		Bucket: &t.objects.Bucket, Key: t.objects.Name(name),
	})
	if status(err) == http.StatusNotFound {
		return nil, &fs.PathError{Op: "get", Path: t.String() + "/" + name, Err: fs.ErrNotExist}
	}
	if err != nil {
		return nil, t.failed(watched, "find "+name, err)
	}
	return &object{ctx: ctx, target: t, name: name, size: aws.ToInt64(head.ContentLength), etag: head.ETag}, nil
}

// Delete implements [archive.Target].
func (t *Target) Delete(ctx context.Context, name string) error {
	watched, _, end := t.watch(ctx)
	defer end()
	if err := t.objects.Delete(watched, name); err != nil {
		return t.failed(watched, "delete "+name, err)
	}
	return nil
}

// List implements [archive.Target].
func (t *Target) List(ctx context.Context, folder string) (objects []archive.Object, err error) {
	whole := *t.objects.Name(folder)
	pages := s3.NewListObjectsV2Paginator(t.objects.Client, &s3.ListObjectsV2Input{
		Bucket: &t.objects.Bucket, Prefix: &whole, Delimiter: aws.String("/"),
	})
	add := func(key string, size int64) error {
		name, below := strings.CutPrefix(key, whole)
		if !below {
			return fmt.Errorf("list of %s in %s: it has %q", whole, t, key)
		}
		objects = append(objects, archive.Object{Name: folder + name, Size: size})
		return nil
	}
	for next := ""; pages.HasMorePages(); {
		watched, _, end := t.watch(ctx)
		page, err := pages.NextPage(watched)
		if err != nil {
			err = t.failed(watched, "list "+whole, err)
		}
		if end(); err != nil {
			return nil, err
		}
		for _, p := range page.CommonPrefixes {
			err = errors.Join(err, add(aws.ToString(p.Prefix), 0))
		}
		for _, o := range page.Contents {
			err = errors.Join(err, add(aws.ToString(o.Key), aws.ToInt64(o.Size)))
		}
		token := aws.ToString(page.NextContinuationToken)
		if err == nil && token != "" && token == next {
			err = fmt.Errorf("list of %s in %s: it has no end", whole, t)
		}
		if next = token; err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// status returns the HTTP status of an error, 0 if it has none.
func status(err error) int {
	response, is := errors.AsType[*smithyhttp.ResponseError](err)
	if !is {
		return 0
	}
	return response.HTTPStatusCode()
}

// window is how many bytes are read at once, at least, and mostAhead where reads follow one another.
const (
	window    = 1 << 20
	mostAhead = 16 << 20
)

// object is an object that is being read.
type object struct {
	ctx    context.Context //nolint:containedctx // A file has methods without one.
	target *Target
	name   string
	size   int64
	etag   *string

	mu     sync.Mutex
	at     int64 // of what was read last
	cached []byte
}

var errReadOnly = errors.New("an object is only read")

// ReadAt implements [io.ReaderAt].
func (o *object) ReadAt(b []byte, at int64) (n int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n < len(b) {
		if at+int64(n) >= o.size {
			return n, io.EOF
		}
		from := at + int64(n) - o.at
		if from < 0 || from >= int64(len(o.cached)) {
			if err := o.fill(at+int64(n), len(b)-n); err != nil {
				return n, err
			}
			from = 0
		}
		n += copy(b[n:], o.cached[from:])
	}
	return n, nil
}

// fill reads from an offset on, at least one byte.
func (o *object) fill(at int64, wanted int) error {
	if at == o.at+int64(len(o.cached)) {
		wanted = max(wanted, min(2*len(o.cached), mostAhead))
	}
	end := min(at+int64(max(wanted, window)), o.size)
	watched, m, done := o.target.watch(o.ctx)
	defer done()
	answer, err := o.target.objects.Client.GetObject(watched, &s3.GetObjectInput{
		Bucket: &o.target.objects.Bucket, Key: o.target.objects.Name(o.name), IfMatch: o.etag,
		Range: aws.String(fmt.Sprintf("bytes=%d-%d", at, end-1)),
	})
	if err != nil {
		return o.target.failed(watched, "read "+o.name, err)
	}
	var read bytes.Buffer
	_, err = read.ReadFrom(io.LimitReader(io.TeeReader(answer.Body, m), end-at))
	err = errors.Join(err, answer.Body.Close())
	if err == nil && int64(read.Len()) != end-at {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return o.target.failed(watched, "read "+o.name, err)
	}
	o.at, o.cached = at, read.Bytes()
	return nil
}

// Size implements [blockfile.File].
func (o *object) Size() (int64, error) { return o.size, nil }

// Close implements [io.Closer].
func (o *object) Close() error { return nil }

// WriteAt implements [blockfile.File].
func (*object) WriteAt([]byte, int64) (int, error) { return 0, errReadOnly }

// Truncate implements [blockfile.File].
func (*object) Truncate(int64) error { return errReadOnly }

// Sync implements [blockfile.File].
func (*object) Sync() error { return errReadOnly }

// Map implements [blockfile.File].
func (*object) Map(int64) ([]byte, error) { return nil, nil }

// Unmap implements [blockfile.File].
func (*object) Unmap([]byte) error { return nil }
