// Package bucket reads and conditionally writes the objects of a bucket.
package bucket

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/seqledger/seqledger/client/idempotency"
)

// Connect returns the bucket of a URL of the form s3://BUCKET/PREFIX, and the URL's parameters. own lists the
// parameters that the caller accepts in addition to region, endpoint and path_style.
func Connect(ctx context.Context, address string, own ...string) (*Objects, url.Values, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "s3" || u.Host == "" {
		return nil, nil, errors.New("the URL must be of the form s3://BUCKET/PREFIX?region=REGION")
	}
	query := u.Query()
	for name := range query {
		if !slices.Contains(append(own, "region", "endpoint", "path_style"), name) {
			return nil, nil, fmt.Errorf("the URL has the unknown parameter %q", name)
		}
	}
	var loading []func(*config.LoadOptions) error
	if region := query.Get("region"); region != "" {
		loading = append(loading, config.WithRegion(region))
	}
	settings, err := config.LoadDefaultConfig(ctx, loading...)
	if err != nil {
		return nil, nil, err
	}
	client := s3.NewFromConfig(settings, func(o *s3.Options) {
		o.UsePathStyle = query.Get("path_style") == "true"
		if endpoint := query.Get("endpoint"); endpoint != "" {
			o.BaseEndpoint = aws.String(endpoint)
		}
		// Stores other than Amazon's refuse the checksums that Amazon's newer clients add.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	})
	return &Objects{client, u.Host, strings.Trim(u.Path, "/")}, query, nil
}

// Objects are the objects of a bucket below a prefix.
type Objects struct {
	Client         *s3.Client
	Bucket, Prefix string
}

// Name returns the full name of an object.
func (o *Objects) Name(relative string) *string {
	if o.Prefix != "" {
		relative = o.Prefix + "/" + relative
	}
	return &relative
}

// Get reads an object. An absent one has the ETag "". now is the store's time in whole seconds.
func (o *Objects) Get(ctx context.Context, name string) (body []byte, etag string, now time.Time, err error) {
	answer, err := o.Client.GetObject(ctx, &s3.GetObjectInput{Bucket: &o.Bucket, Key: o.Name(name)})
	if err != nil {
		response, ok := errors.AsType[*smithyhttp.ResponseError](err)
		if !ok || response.HTTPStatusCode() != http.StatusNotFound || isNoBucket(err) {
			return nil, "", time.Time{}, refused(err)
		}
		now, err = http.ParseTime(response.HTTPResponse().Header.Get("Date"))
		return nil, "", now, err
	}
	defer func() { _ = answer.Body.Close() }()
	var buffer bytes.Buffer
	if _, err := buffer.ReadFrom(answer.Body); err != nil {
		return nil, "", time.Time{}, err
	}
	now, ok := awsmiddleware.GetServerTime(answer.ResultMetadata)
	if !ok || aws.ToString(answer.ETag) == "" {
		return nil, "", time.Time{}, errors.New("the answer of the store has no Date or no ETag")
	}
	return buffer.Bytes(), *answer.ETag, now, nil
}

// Page is a page of a list of objects.
type Page struct {
	Objects []Listed
	Now     time.Time // on the store's clock, in whole seconds
}

// Listed is an object in a list.
type Listed struct {
	Name    string    // relative to the prefix
	Written time.Time // on the store's clock
}

// List returns the objects in a folder, without those in subfolders, in requests of up to most. An error is the last
// item.
func (o *Objects) List(ctx context.Context, folder string, most int) iter.Seq2[Page, error] {
	whole, delimiter := *o.Name(folder), "/"
	return func(yield func(Page, error) bool) {
		pages := s3.NewListObjectsV2Paginator(o.Client, &s3.ListObjectsV2Input{
			Bucket: &o.Bucket, Prefix: &whole, Delimiter: &delimiter, MaxKeys: aws.Int32(int32(most)),
		})
		for pages.HasMorePages() {
			answer, err := pages.NextPage(ctx)
			if err != nil {
				yield(Page{}, err)
				return
			}
			page := Page{}
			page.Now, _ = awsmiddleware.GetServerTime(answer.ResultMetadata)
			for _, content := range answer.Contents {
				page.Objects = append(page.Objects, Listed{
					folder + strings.TrimPrefix(aws.ToString(content.Key), whole), aws.ToTime(content.LastModified),
				})
			}
			if !yield(page, nil) {
				return
			}
		}
	}
}

// Delete deletes an object, which may be absent.
func (o *Objects) Delete(ctx context.Context, name string) error {
	_, err := o.Client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &o.Bucket, Key: o.Name(name)})
	return err
}

// isNoBucket reports whether an error says that the bucket does not exist, as opposed to the object.
func isNoBucket(err error) bool {
	failure, ok := errors.AsType[smithy.APIError](err)
	return ok && failure.ErrorCode() == "NoSuchBucket"
}

// Put writes an object if its ETag is the given one, "" for an absent object, and reports whether it did.
func (o *Objects) Put(ctx context.Context, name, etag string, body []byte) (written bool, now string, err error) {
	input := &s3.PutObjectInput{
		Bucket: &o.Bucket, Key: o.Name(name), Body: bytes.NewReader(body), ContentType: aws.String("application/json"),
	}
	if etag == "" {
		input.IfNoneMatch = aws.String("*")
	} else {
		input.IfMatch = &etag
	}
	answer, err := o.Client.PutObject(ctx, input)
	if err == nil {
		return true, aws.ToString(answer.ETag), nil
	}
	if response, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && !isNoBucket(err) {
		switch status := response.HTTPStatusCode(); {
		case status == http.StatusPreconditionFailed:
			return false, "", nil
		case status == http.StatusConflict: // another conditional write is in flight
			return false, "", nil
		case status == http.StatusNotFound && etag != "": // deleted meanwhile
			return false, "", nil
		}
	}
	return false, "", refused(err)
}

// refused marks an error by which the store denies the access or has no such bucket: it has answered, and will answer
// so again.
func refused(err error) error {
	response, ok := errors.AsType[*smithyhttp.ResponseError](err)
	if !ok {
		return err
	}
	status := response.HTTPStatusCode()
	if status == http.StatusUnauthorized || status == http.StatusForbidden || isNoBucket(err) {
		return fmt.Errorf("%w: %w", idempotency.ErrRefused, err)
	}
	return err
}

// ErrNoConditions is returned for a store that ignores the conditions of writes.
var ErrNoConditions = errors.New("the store ignores the conditions of writes (If-None-Match, If-Match): two owners " +
	"could run at once")

// ProbesName is the name prefix of the objects on which conditions are tried.
const ProbesName = "idempotency-probes/"

// probes is how often the conditions are tried before a store is refused because it refuses a write.
const probes = 3

// CheckConditions tries every condition on a test object.
func (o *Objects) CheckConditions(ctx context.Context) (err error) {
	for range probes {
		var again bool
		if again, err = o.probe(ctx); !again {
			break
		}
	}
	return err
}

// probe tries the conditions once. again is true if the store refused a write that it should have accepted. That can
// happen because the client retries a failed request: if the first one was performed anyway, the retry is refused.
func (o *Objects) probe(ctx context.Context) (again bool, err error) {
	name := ProbesName + rand.Text() + ".json"
	written, first, err := o.Put(ctx, name, "", []byte(`{"probe":1}`))
	switch {
	case err != nil:
		return false, err
	case !written || first == "":
		return true, fmt.Errorf("%w: a new object is refused", ErrNoConditions)
	}
	defer func() {
		_ = o.Delete(ctx, name) // a leftover probe is harmless, and nothing else needs the permission to delete
	}()
	written, second, err := o.Put(ctx, name, first, []byte(`{"probe":2}`))
	switch {
	case err != nil:
		return false, err
	case !written || second == first:
		return true, fmt.Errorf("%w: If-Match refuses the object's own ETag", ErrNoConditions)
	}
	for condition, etag := range map[string]string{"If-None-Match": "", "If-Match": first} {
		written, _, err := o.Put(ctx, name, etag, []byte(`{"probe":3}`))
		if err == nil && written {
			err = fmt.Errorf("%w: %s", ErrNoConditions, condition)
		}
		if err != nil {
			return false, err
		}
	}
	body, etag, _, err := o.Get(ctx, name)
	if err == nil && (string(body) != `{"probe":2}` || etag != second) {
		err = fmt.Errorf("%w: an object is not read as it was written", ErrNoConditions)
	}
	return false, err
}

// Escape makes a text part of an object's name: letters, digits, '-' and '_' stay, other characters have the form %XX,
// and the empty text becomes '-'.
func Escape(s string) string {
	if s == "" {
		return "-"
	}
	var out strings.Builder
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' && s != "-" {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}
