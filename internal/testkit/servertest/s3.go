package servertest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sys/unix"

	"github.com/seqledger/seqledger/internal/testkit/process"
)

// What a server of S3 takes. The credentials are those of its only user.
const (
	S3Region = "us-east-1"
	S3Access = "test"
	S3Secret = "test-secret"
	S3Bucket = "keys"
)

// moduleRoot is the directory with go.mod, above the package whose tests run.
func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("the tests run outside of the module")
	return ""
}

// S3 starts a new versitygw with the bucket S3Bucket. Its URL is that of a store with the prefix test, for a process
// with the environment of [S3Environment].
func S3(t testing.TB) *Server {
	t.Helper()
	path := process.Find("versitygw", filepath.Join(moduleRoot(t), "bin/tools/versitygw"))
	if path == "" {
		missing(t, "versitygw", "make test-stores builds it")
	}
	s := newServer(t, "s3", nil)
	data, metadata := filepath.Join(s.Dir, "data"), filepath.Join(s.Dir, "metadata")
	for _, dir := range []string{data, metadata} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.URL = "s3://" + S3Bucket + "/test?path_style=true&region=" + S3Region + "&endpoint=http://" + s.Address
	s.command = func() *exec.Cmd {
		// Without extended attributes the metadata is in separate files, and an answer may have the tag of another
		// version than its body, which is not what S3 promises: a race may then have two winners.
		backend := []string{"posix", data}
		if unix.Setxattr(data, "user.seqledger", []byte("1"), 0) != nil {
			t.Log("the file system has no extended attributes: races over this bucket prove little")
			backend = []string{"posix", "--sidecar", metadata, data}
		}
		return exec.Command(path, append([]string{"--access", S3Access, "--secret", S3Secret, "--region", S3Region,
			"--port", s.Address, "--quiet"}, backend...)...)
	}
	s.answers = s.dials
	s.Start()
	_, err := S3Client(s.Address).CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(S3Bucket)})
	// The client repeats a request whose answer it lost.
	var exists *types.BucketAlreadyOwnedByYou
	if err != nil && !errors.As(err, &exists) {
		t.Fatal(err)
	}
	return s
}

// S3Environment is the environment of a process that uses a server of [S3].
func S3Environment() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + S3Access, "AWS_SECRET_ACCESS_KEY=" + S3Secret}
}

// S3Client returns a client of a server of [S3] at an address.
func S3Client(address string) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String("http://" + address), UsePathStyle: true, Region: S3Region,
		Credentials:                credentials.NewStaticCredentialsProvider(S3Access, S3Secret, ""),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
	})
}
