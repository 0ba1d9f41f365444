package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/seqledger/seqledger/client/idempotency"
)

// provider is a payment service. It makes the charge of order-2 only later, and cancels that of order-3; its answers to
// both are lost.
type provider struct{ charges map[string]string }

func (p *provider) charge(key string, _ int) (id string, err error) {
	switch key {
	case "order-2":
		return "", errors.New("timeout")
	case "order-3":
		p.charges[key] = "canceled"
		return "", errors.New("connection reset")
	}
	p.charges[key] = "ch_1"
	return "ch_1", nil
}

// late is when the provider gets to what it had not done when its client gave up.
func (p *provider) late() { p.charges["order-2"] = "ch_2" }

// lookUp asks the provider for a charge by its key. With over it will never be made: it was refused, or it was canceled
// by its key. Without both it may be under way, also when the provider has never heard of it.
func (p *provider) lookUp(key string) (id string, over bool) {
	id = p.charges[key]
	if id == "canceled" {
		return "", true
	}
	return id, false
}

// A card is charged once per order. When it is unknown whether the provider made the charge, a retry does not request
// it again: it looks the charge up at the provider and settles the record. That a charge is not found proves nothing,
// because a slow provider may still make it: the record is settled as rejected only when the provider says that the
// charge will never be made, and stays unknown until then.
func Example_chargeACardOnce() {
	ctx, bank := context.Background(), &provider{map[string]string{}}
	store, ok := idempotency.Memory().(idempotency.Resolver) // in production a ledger, or a database
	if !ok {
		log.Fatal("this store settles nothing")
	}
	settle := func(order string, key *idempotency.RecordKey) {
		state, result := idempotency.Rejected, idempotency.Result{Response: []byte("not charged")}
		id, over := bank.lookUp(order)
		switch {
		case id != "":
			state, result.Response = idempotency.Committed, []byte(id)
		case !over:
			fmt.Println(order, "is open: it may still be charged")
			return
		}
		if _, err := store.Resolve(ctx, key, state, result); err != nil {
			log.Fatal(err)
		}
		fmt.Println(order, "is settled:", string(result.Response))
	}
	pay := func(order string, amount int) {
		key := idempotency.RecordKey{Namespace: "charges", Key: order}
		done, err := idempotency.Do(ctx, store, key, func(context.Context, *idempotency.Owner) ([]byte, error) {
			id, err := bank.charge(order, amount) // the order identifies the charge to the provider, too
			return []byte(id), err
		})
		if err == nil {
			fmt.Println(order, "is paid by", string(done.Response))
		} else if idempotency.CodeOf(err) == idempotency.CodeOutcomeUnknown {
			settle(order, &key)
		} else {
			fmt.Println(order, "is open:", err)
		}
	}
	pay("order-1", 500)
	pay("order-1", 500) // the customer clicked twice
	pay("order-2", 700) // the provider is too slow
	pay("order-2", 700) // nothing is charged again, and nothing is known
	bank.late()
	pay("order-2", 700)
	pay("order-2", 700)
	pay("order-3", 900) // the answer is lost
	pay("order-3", 900)
	// Output:
	// order-1 is paid by ch_1
	// order-1 is paid by ch_1
	// order-2 is open: timeout
	// order-2 is open: it may still be charged
	// order-2 is settled: ch_2
	// order-2 is paid by ch_2
	// order-3 is open: connection reset
	// order-3 is settled: not charged
}

// A webhook is delivered at least once. The key is the event's own id, and the principal is the sender, so that the
// same id from two senders does not collide.
func Example_webhook() {
	store, stock := idempotency.Memory(), 10 // in production a database
	handle := func(sender, event string, sold int) {
		key := idempotency.RecordKey{Namespace: "webhooks", Principal: sender, Key: event}
		// The same id with another body is the sender's mistake, and is refused.
		body := &idempotency.Request{Namespace: "webhooks", Body: fmt.Append(nil, sold)}
		fingerprint, err := idempotency.NewFingerprint(context.Background(), idempotency.FingerprintRaw, nil, body)
		if err != nil {
			log.Fatal(err)
		}
		options := idempotency.DoOptions{Fingerprint: fingerprint}
		done, err := options.Do(context.Background(), store, key,
			func(context.Context, *idempotency.Owner) ([]byte, error) {
				stock -= sold // in a database: store.WithTx, which commits both or neither
				return fmt.Append(nil, "stock ", stock), nil
			})
		if refused, ok := errors.AsType[*idempotency.Error](err); ok {
			fmt.Println(event, refused.Code)
			return
		}
		fmt.Println(event, string(done.Response), done.Replayed)
	}
	handle("shop", "evt_1", 3)
	handle("shop", "evt_1", 3) // delivered again
	handle("shop", "evt_1", 4) // another event with the same id
	handle("till", "evt_1", 2) // from another sender
	// Output:
	// evt_1 stock 7 false
	// evt_1 stock 7 true
	// evt_1 key-reused
	// evt_1 stock 5 false
}
