package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/internal/describe"
	"github.com/seqledger/seqledger/internal/keyed"
)

// marksName is the name prefix of marks. A list of objects does not show their contents, so each open key of a
// principal has a mark, a second object. Its name contains the key and the token of an ownership.
const marksName = "idempotency-open/"

// quota counts the open keys of principals by their marks. It relies on this:
//
//   - An ownership writes its mark, counts, and then writes its record. Of two ownerships, the one whose mark is later
//     counts the other, so that together they do not exceed the limit.
//   - A token is drawn for one attempt to write a record, after the old record was read. So a mark has one writer,
//     which may delete it when that attempt can no longer succeed: no other ownership relies on it.
//   - Other callers delete a mark only when its key is not open and cannot be opened by an attempt with the mark's
//     token: the record has that token or a higher one, or it has been rewritten, so that an attempt in flight fails. A
//     clock decides when they do so. Its safety does not depend on the clock.
//
// A crash may leave an extra mark, which a refusal looks for, but never leaves a mark missing.
type quota struct {
	backend *backend
	most    int // Options.MaxOpen; 0 for no quota
	// settles is how long a mark may exist before its record. A shorter time fails reservations in flight; they are
	// decided again.
	settles time.Duration
}

const (
	markSettles = 5 * time.Minute
	keysChecked = 16   // keys that a refusal examines
	listMost    = 1000 // objects in one response of S3
)

// marksFolder returns the folder of a principal's marks.
func marksFolder(record string, d *describe.Description) string {
	principal := sha256.Sum256([]byte(d.Principal))
	return marksName + path.Dir(record)[len(recordsName):] + "/" + hex.EncodeToString(principal[:]) + "/"
}

// keyHash returns the hash in the name of a record or a mark.
func keyHash(name string) string {
	hash, _, _ := strings.Cut(path.Base(name), ".")
	return hash
}

// markOf returns the name of the mark of an ownership.
func markOf(folder, record string, token uint64) string {
	return folder + keyHash(record) + "." + strconv.FormatUint(token, 10) + ".json"
}

// tokenOf returns the token of a mark.
func tokenOf(mark string) uint64 {
	_, rest, _ := strings.Cut(path.Base(mark), ".")
	token, _ := strconv.ParseUint(strings.TrimSuffix(rest, ".json"), 10, 64) // 0 is below every token
	return token
}

// admit marks a key whose record is about to become pending. It returns an [*idempotency.QuotaError] if the principal
// would exceed its limit of open keys. The mark is "" if this ownership needs none.
func (q *quota) admit(
	ctx context.Context, name string, d *describe.Description, record *keyed.Record,
) (mark string, err error) {
	// A key that is taken over stays open, under its existing mark. An owner that extends its lease already has a mark;
	// in the same second as its reservation it looks like a new owner here.
	fresh := record.State == keyed.Pending && record.Created == record.LeaseSet && record.CheckpointSize == 0
	if q.most == 0 || !fresh {
		return "", nil
	}
	folder := marksFolder(name, d)
	mark = markOf(folder, name, record.Token)
	written, _, err := q.backend.objects.Put(ctx, mark, "", []byte("{}\n"))
	if err != nil {
		return "", err
	}
	if !written { // by this owner's reservation, or by this request, whose answer was lost
		current, _, err := q.record(ctx, name)
		if err != nil || current != nil && current.Token == record.Token && isOpen(current.State) {
			return "", err
		}
	}
	over, err := q.over(ctx, folder, keyHash(name))
	if err != nil || !over {
		return mark, err // after an error the mark stays, and a later refusal decides whether it counts
	}
	if err := q.backend.objects.Delete(ctx, mark); err != nil {
		return "", err
	}
	return "", &idempotency.QuotaError{Cause: fmt.Errorf("%w: %d", idempotency.ErrOpenKeys, q.most)}
}

// record reads a stored record; the result is nil if there is none.
func (q *quota) record(ctx context.Context, name string) (r *keyed.Record, etag string, err error) {
	o, etag, _, err := q.backend.read(ctx, name)
	if err != nil || o == nil {
		return nil, "", err
	}
	if r, err = keyed.Decode(o.Record); err != nil {
		return nil, "", fmt.Errorf("%w: the object %s: %w", idempotency.ErrDamaged, name, err)
	}
	return r, etag, nil
}

// over reports whether a principal has too many keys with marks. Before it returns true, it checks some old marks for
// ones that a crash has left.
func (q *quota) over(ctx context.Context, folder, own string) (bool, error) {
	keys, old := map[string][]string{}, map[string]bool{}
	for page, err := range q.backend.objects.List(ctx, folder, listMost) {
		if err != nil {
			return false, err
		}
		for _, mark := range page.Objects {
			key := keyHash(mark.Name)
			keys[key] = append(keys[key], mark.Name)
			if key != own && page.Now.Sub(mark.Written) >= q.settles {
				old[key] = true
			}
		}
		if len(keys) > q.most+listMost {
			break // the limit of what a refusal examines
		}
	}
	tooMany := len(keys) - q.most
	candidates := slices.Collect(maps.Keys(old))
	// Otherwise keys that stay open would hide the ones after them.
	rand.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	for _, key := range candidates[:min(len(candidates), keysChecked)] {
		if tooMany <= 0 {
			break
		}
		left, err := q.sweep(ctx, recordOf(folder, key), keys[key])
		if err != nil {
			return false, err
		}
		if left {
			tooMany--
		}
	}
	return tooMany > 0, nil
}

// recordOf returns the name of a record whose marks are in a folder.
func recordOf(folder, key string) string {
	return recordsName + path.Dir(path.Clean(folder))[len(marksName):] + "/" + key + ".json"
}

// sweep deletes the marks of a key that crashes have left, unless the key is open, and reports whether it did.
func (q *quota) sweep(ctx context.Context, name string, marks []string) (bool, error) {
	o, etag, now, err := q.backend.read(ctx, name)
	if err != nil {
		return false, err
	}
	highest := uint64(0)
	for _, mark := range marks {
		highest = max(highest, tokenOf(mark))
	}
	if o == nil {
		at := now.UnixNano()
		o = newObject(name, &keyed.Record{
			State: keyed.Released, Token: highest, Created: at, Completed: at, Expires: at + int64(keyed.TombstoneTTL),
		})
	}
	record, err := keyed.Decode(o.Record)
	if err != nil {
		return false, fmt.Errorf("%w: the object %s: %w", idempotency.ErrDamaged, name, err)
	}
	if current := record.At(keyed.Moment{Now: now.UnixNano()}); current != nil && isOpen(current.State) {
		return false, nil
	}
	if etag == "" || record.Token < highest {
		// The record of such a mark may still arrive. Its write fails once the record has changed since it was read.
		if written, err := q.backend.write(ctx, name, etag, o); err != nil || !written {
			return false, err
		}
	}
	for _, mark := range marks {
		if err := q.backend.objects.Delete(ctx, mark); err != nil {
			return false, err
		}
	}
	return true, nil
}

// withdraw deletes the mark of an ownership that lost a race. etag is that of the record before the race. A leftover
// mark is swept when it matters.
func (q *quota) withdraw(ctx context.Context, name, etag, mark string, token uint64) {
	current, now, err := q.record(ctx, name)
	switch {
	case err != nil || current == nil || now == etag: // it met no other record, and may still be performed
		return
	case current.Token == token || isOpen(current.State) && current.Attempts > 1:
		// A retried request may have lost against itself, and the key may have been taken over under this mark.
		return
	}
	_ = q.backend.objects.Delete(ctx, mark)
}

// isOpen reports whether a key in a state counts.
func isOpen(s keyed.State) bool { return s == keyed.Pending || s == keyed.Indeterminate }

// settled deletes the marks of a finished or released record. A leftover mark is swept when it matters.
func (q *quota) settled(ctx context.Context, name string, d *describe.Description, record *keyed.Record) {
	if q.most == 0 || isOpen(record.State) {
		return
	}
	folder := marksFolder(name, d)
	_ = q.backend.objects.Delete(ctx, markOf(folder, name, record.Token))
	if record.Attempts == 1 {
		return
	}
	// Its mark has the token of an earlier owner, and a released record does not tell how many owners there were.
	for page, err := range q.backend.objects.List(ctx, folder+keyHash(name)+".", listMost) {
		if err != nil {
			return
		}
		for _, mark := range page.Objects {
			if tokenOf(mark.Name) <= record.Token {
				_ = q.backend.objects.Delete(ctx, mark.Name)
			}
		}
	}
}
