package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/internal/describe"
	"github.com/seqledger/seqledger/client/idempotency/s3/internal/bucket"
	"github.com/seqledger/seqledger/internal/keyed"
)

// errOpenKeys is the cause of a refusal by the quota.
var errOpenKeys = errors.New("too many keys of this principal are pending, or have an unknown outcome")

// marksName is the beginning of the names of marks. The open keys of a principal have a mark each, an object beside the
// record, because a list of objects says nothing of what is in them. A mark is written before its record is, and
// deleted after the record is finished: a crash in between leaves a mark too many, never one too few.
const marksName = "idempotency-open/"

// quota counts the open keys of principals.
type quota struct {
	objects *bucket.Objects
	read    func(ctx context.Context, name string) (o *object, etag string, now time.Time, err error)
	most    int // Options.MaxOpen; 0 for no quota
	// settles is how long a mark may be there before its record is.
	settles time.Duration
}

const (
	markSettles  = 5 * time.Minute
	marksChecked = 16   // marks that a refusal looks at
	listMost     = 1000 // objects in an answer of S3
)

// markOf returns the folder of the marks of a principal, and the name of the mark of a record in it.
func markOf(record string, d *describe.Description) (folder, mark string) {
	principal := sha256.Sum256([]byte(d.Principal))
	folder = marksName + path.Dir(record)[len(recordsName):] + "/" + hex.EncodeToString(principal[:]) + "/"
	return folder, folder + path.Base(record)
}

// admit marks a key whose record is about to be pending, and returns an [*idempotency.QuotaError] if it would be one
// open key too many of its principal. A key that has a mark has been counted.
func (q *quota) admit(ctx context.Context, name string, d *describe.Description, record *keyed.Record) error {
	// An owner that extends its lease has been counted. One of the same second costs a request, and no more.
	fresh := record.State == keyed.Pending && record.Created == record.LeaseSet
	if q.most == 0 || !fresh {
		return nil
	}
	folder, mark := markOf(name, d)
	written, _, err := q.objects.Put(ctx, mark, "", []byte("{}\n"))
	if err != nil || !written {
		return err
	}
	over, err := q.over(ctx, folder, mark)
	if err != nil || !over {
		return err // with an error the mark stays: whether it counts is seen by the next call that looks
	}
	if err := q.objects.Delete(ctx, mark); err != nil {
		return err
	}
	return &idempotency.QuotaError{Cause: fmt.Errorf("%w: %d", errOpenKeys, q.most)}
}

// over reports whether a principal has too many marks. Before it says so, it looks at old ones for those that a
// crash has left.
func (q *quota) over(ctx context.Context, folder, own string) (bool, error) {
	var marks []bucket.Listed
	var now time.Time
	for page, err := range q.objects.List(ctx, folder, listMost) {
		if err != nil {
			return false, err
		}
		now = page.Now
		if marks = append(marks, page.Objects...); len(marks) > q.most+listMost {
			break // more than a refusal looks at
		}
	}
	tooMany, checked := len(marks)-q.most, 0
	for _, mark := range marks {
		if tooMany <= 0 || checked == marksChecked {
			break
		}
		if mark.Name == own || now.Sub(mark.Written) < q.settles {
			continue
		}
		checked++
		left, err := q.sweep(ctx, mark.Name)
		if err != nil {
			return false, err
		}
		if left {
			tooMany--
		}
	}
	return tooMany > 0, nil
}

// sweep deletes a mark that a crash has left of a key that is not open, and reports whether it did.
func (q *quota) sweep(ctx context.Context, mark string) (bool, error) {
	scope := path.Dir(path.Dir(mark))[len(marksName):]
	o, _, now, err := q.read(ctx, recordsName+scope+"/"+path.Base(mark))
	if err != nil {
		return false, err
	}
	if o != nil {
		record, err := idempotency.ListedAs(o.Record, now)
		if err != nil || record != nil && isOpen(keyed.State(record.State)) {
			return false, err
		}
	}
	return true, q.objects.Delete(ctx, mark)
}

// isOpen reports whether a key in a state counts.
func isOpen(s keyed.State) bool { return s == keyed.Pending || s == keyed.Indeterminate }

// settled deletes the mark of a record that is finished or released. A mark that stays is swept when it matters.
func (q *quota) settled(ctx context.Context, name string, d *describe.Description, record *keyed.Record) {
	if q.most == 0 || isOpen(record.State) {
		return
	}
	_, mark := markOf(name, d)
	_ = q.objects.Delete(ctx, mark)
}
