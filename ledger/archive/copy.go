package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seqledger/seqledger/ledger/machine"
)

// maxObject is how many bytes of an object a copy has in memory.
const maxObject = 256 << 20

// Copy copies the archive of a ledger to another target. An object that the target has stays, so that a copy that was
// interrupted is continued. What makes an archive of the objects comes last. States come before the log and the blocks
// that they need, because the archive may get more of each meanwhile. It tells the name of each
// object and how many bytes it has.
func Copy(
	ctx context.Context, from, to Target, ledger machine.LedgerID, told func(name string, bytes int64),
) error {
	if _, err := readHeader(ctx, from, ledger); err != nil {
		return err
	}
	if h, err := readHeader(ctx, to, ledger); err == nil {
		err = checkMark(ctx, from, Mark{h.ledger, h.id})
		if err != nil {
			return fmt.Errorf("%s has another archive of the ledger: %w", to, err)
		}
	} else if !errors.Is(err, ErrNone) {
		return err
	}
	return copyFolder(ctx, from, to, folder(ledger), told)
}

// copyFolder copies the folders in a folder, and then its objects.
func copyFolder(ctx context.Context, from, to Target, folder string, told func(name string, bytes int64)) error {
	found, err := from.List(ctx, folder)
	if err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b Object) int { return strings.Compare(a.Name, b.Name) })
	for _, o := range slices.Backward(found) {
		if !strings.HasSuffix(o.Name, "/") || strings.HasSuffix(o.Name, "/"+temporaryFolder+"/") {
			continue
		}
		if err := copyFolder(ctx, from, to, o.Name, told); err != nil {
			return err
		}
	}
	for _, o := range found {
		if strings.HasSuffix(o.Name, "/") {
			continue
		}
		content, err := readSmall(ctx, from, o.Name, maxObject+1)
		if err == nil && int64(len(content)) != o.Size {
			err = fmt.Errorf("%s in %s: %d bytes were read, and it has %d", o.Name, from, len(content), o.Size)
		}
		if err == nil {
			err = putBytes(ctx, to, o.Name, content)
		}
		if err != nil {
			return err
		}
		told(o.Name, o.Size)
	}
	return nil
}
