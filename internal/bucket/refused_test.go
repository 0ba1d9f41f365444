package bucket

import (
	"errors"
	"net/http"
	"testing"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/seqledger/seqledger/client/idempotency"
)

// A store that denies the access, or has no such bucket, has answered; one that asks to come later has not.
func TestRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		code   string
		want   bool
	}{
		"denied":    {http.StatusForbidden, "AccessDenied", true},
		"unknown":   {http.StatusUnauthorized, "Unauthorized", true},
		"no bucket": {http.StatusNotFound, "NoSuchBucket", true},
		"slow down": {http.StatusServiceUnavailable, "SlowDown", false},
		"broken":    {http.StatusInternalServerError, "InternalError", false},
	} {
		cause := &smithyhttp.ResponseError{
			Response: &smithyhttp.Response{Response: &http.Response{StatusCode: test.status}},
			Err:      &smithy.GenericAPIError{Code: test.code},
		}
		if err := refused(cause); errors.Is(err, idempotency.ErrRefused) != test.want || !errors.Is(err, cause) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := refused(errors.New("no route to host")); errors.Is(err, idempotency.ErrRefused) {
		t.Error(err)
	}
}
