package machine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/seqledger/seqledger/internal/keyed"
)

// attachment is what a keyed record says of a response or checkpoint that it has
// put aside.
type attachment struct {
	size uint64
	sum  *[32]byte // of a response
}

// keyedTables checks the keyed records against their attachments, the expiry
// index, the counts and the transactions of keyed writes. What a record says of its
// owner cannot be recomputed, because reservations are in no block.
func (a *auditor) keyedTables() error {
	perPrincipal := map[string]uint64{}
	attachments := map[uint64]attachment{}
	pending := uint64(0)
	err := a.scan(TableKeyed, "keyed record", func(k, v []byte) error {
		a.sum.Keys++
		if e, err := decodeKeyed(v); err == nil && e.State == keyed.Pending {
			pending++
		}
		a.keyedEntries++
		e, err := decodeKeyed(bytes.Clone(v))
		if err != nil {
			return err
		}
		principal, err := principalPart(k)
		if err != nil {
			return err
		}
		perPrincipal[string(principal)]++
		if e.responseAt != 0 {
			attachments[e.responseAt] = attachment{e.ResponseSize, &e.ResponseSum}
		}
		if e.checkpointAt != 0 {
			attachments[e.checkpointAt] = attachment{e.CheckpointSize, nil}
		}
		if due := a.latestDue(e); e.indexed > due {
			return fmt.Errorf("the expiry index has it at %d, it is due at %d", e.indexed, due)
		}
		b, err := a.r.Get(TableExpiry, appendExpiryKey(nil, expiryKeyed, e.indexed, k))
		if err == nil && b == nil {
			err = fmt.Errorf("the expiry index does not have it at %d", e.indexed)
		}
		if err != nil {
			return err
		}
		return a.keyedRecord(k, e)
	})
	if err != nil {
		return err
	}
	if pending != a.head.pendingKeys {
		a.problem("number of reservations", "the head says %d, there are %d", a.head.pendingKeys, pending)
	}
	err = a.scan(TablePrincipals, "principal", func(k, _ []byte) error {
		n, err := readCount(a.r, TablePrincipals, k)
		want := perPrincipal[string(k)]
		delete(perPrincipal, string(k))
		if err == nil && n != want {
			err = fmt.Errorf("it counts %d keyed records, there are %d", n, want)
		}
		return err
	})
	if err != nil {
		return err
	}
	reportMissing(a, "principal", perPrincipal)
	return a.attachments(attachments)
}

// latestDue returns the latest time under which the expiry index may have a record. An epoch that sets ledger time
// back does not move the entries of reservations that the earlier clock made.
func (a *auditor) latestDue(e *keyedEntry) int64 {
	due, setBackFrom := e.Due(a.head.moment()), a.head.timeSetBackFrom()
	if setBackFrom == 0 {
		return due
	}
	at := a.head.moment()
	at.Now, at.LeaseFloor, at.FloorSet = a.latestTime(), setBackFrom+int64(keyed.OutageGrace), math.MaxInt64
	return max(due, e.Due(at))
}

// keyedRecord checks what a record says of itself and of its transaction.
func (a *auditor) keyedRecord(key []byte, e *keyedEntry) error {
	now := a.latestTime()
	switch {
	case e.Token == 0 || e.Token > a.head.index:
		return fmt.Errorf("its token %d lies beyond the ledger index", e.Token)
	case e.Created > now || e.Completed > now || e.LeaseSet > now:
		return fmt.Errorf("its times lie beyond the ledger's")
	case e.responseAt == 0 && (uint64(len(e.Response)) != e.ResponseSize ||
		e.ResponseSize > 0 && sha256.Sum256(e.Response) != e.ResponseSum):
		return fmt.Errorf("its response is not what its sum says")
	case e.checkpointAt == 0 && uint64(len(e.Checkpoint)) != e.CheckpointSize:
		return fmt.Errorf("its checkpoint has %d bytes instead of %d", len(e.Checkpoint), e.CheckpointSize)
	case e.State != keyed.Written:
		return nil
	}
	if _, wrote := a.keyedWrites[string(key)]; !wrote && e.Token <= a.sum.Dropped {
		return nil
	}
	t, found, err := findTransaction(a.r, e.Token)
	if err != nil {
		return err
	}
	if !found || t.Keyed == nil || !bytes.Equal(t.Keyed.TableKey(), key) ||
		writtenDigest(t.RequestHash) != e.Fingerprint.Digest {
		return fmt.Errorf("ledger index %d has not written it", e.Token)
	}
	if last := a.keyedWrites[string(key)]; last != e.Token {
		return fmt.Errorf("ledger index %d has written it, and %d since", e.Token, last)
	}
	return nil
}

// attachments checks that the table has exactly the attachments that the records name.
func (a *auditor) attachments(want map[uint64]attachment) error {
	err := a.scan(TableAttachments, "attachment", func(k, v []byte) error {
		if len(k) != 8 {
			return fmt.Errorf("the key has %d bytes instead of 8", len(k))
		}
		at := binary.BigEndian.Uint64(k)
		w, known := want[at]
		delete(want, at)
		switch {
		case !known:
			return fmt.Errorf("no keyed record has it")
		case uint64(len(v)) != w.size || w.sum != nil && sha256.Sum256(v) != *w.sum:
			return fmt.Errorf("it is not what its record says")
		}
		return nil
	})
	for at := range want {
		a.problem(fmt.Sprintf("attachment %d", at), "it is missing: a keyed record has it")
	}
	return err
}
