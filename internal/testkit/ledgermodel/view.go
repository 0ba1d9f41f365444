package ledgermodel

import "github.com/seqledger/seqledger/ledger/machine"

// Receipts returns the receipts of a stream that are in the window, newest first, at most limit.
func Receipts(v machine.View, scope machine.Scope, clientID string, limit int) (receipts []machine.Receipt, err error) {
	indexes, err := v.ReceiptIndexes(scope, clientID, 0, limit)
	for i := 0; i < len(indexes) && err == nil; i++ {
		var r machine.Receipt
		r, err = v.ReceiptAt(indexes[i])
		receipts = append(receipts, r)
	}
	return receipts, err
}

// VisitEntities calls visit for the entities of a scope with their values.
func VisitEntities(v machine.View, scope machine.Scope, visit func(machine.Entity) bool) error {
	var failed error
	_, err := v.VisitEntityRefs(scope, "", "", func(ref machine.EntityRef) bool {
		failed = v.ReadValue(&ref)
		return failed == nil && visit(ref.Entity)
	})
	if err == nil {
		err = failed
	}
	return err
}
