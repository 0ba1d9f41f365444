package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency/s3/jobs"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/memorybucket"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A job is submitted once for an order, however often its producer asks.
func ExampleQueue_Submit() {
	ctx := context.Background()
	// In earnest: queue, err := jobs.Open(ctx, "s3://bucket/prefix?region=eu-central-1")
	queue, err := jobs.New(ctx, new(memorybucket.Bucket).Client(nil, 3), memorybucket.Name, "prefix")
	if err != nil {
		log.Fatal(err)
	}
	submit := func(order, input string) (id string) {
		task, err := queue.Submit(ctx, "resize", []byte(input), jobs.WithKey(order), jobs.WithScope("acme"))
		if _, other := errors.AsType[*jobs.ConflictError](err); other {
			fmt.Println(order, "is another job already")
			return ""
		}
		if err != nil { // whether there is a task is not known: submit it again with its key
			log.Fatal(err)
		}
		fmt.Println(order, "is new:", task.Created)
		return task.ID
	}
	first := submit("order-4711", "photo.jpg")
	again := submit("order-4711", "photo.jpg") // the producer has crashed meanwhile
	fmt.Println("one task:", first == again)
	submit("order-4711", "other.jpg")
	// Output:
	// order-4711 is new: true
	// order-4711 is new: false
	// one task: true
	// order-4711 is another job already
}

// docs/choosing.md shows the example's own lines.
func TestThePageQuotesTheExample(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile("example_test.go")
	must.Do(t, err)
	page := must.Get(os.ReadFile("../../../../docs/choosing.md"))(t)
	_, recipe, found := strings.Cut(string(page), "**Submit a job once.**")
	_, recipe, block := strings.Cut(recipe, "```go\n")
	recipe, _, end := strings.Cut(recipe, "```\n")
	if !found || !block || !end {
		t.Fatal("the page has no recipe with a block of Go")
	}
	for line := range strings.Lines(recipe) {
		check.Contains(t, string(example), strings.TrimSpace(line), "the example has no line %s", line)
	}
}
