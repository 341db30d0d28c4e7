package detect_test

import (
	"testing"

	"github.com/sallyport-ai/sallyport/gateway/detect"
	"github.com/sallyport-ai/sallyport/identity/apikey"
)

func TestKeysThatThisGatewayMakesAreFound(t *testing.T) {
	for range 200 {
		key := apikey.NewKey().Secret()
		found := detect.Scan([]byte("my key is " + key + ", keep it"))
		if len(found) != 1 || found[0].Detector != "sallyport_key" || found[0].End-found[0].Start != len(key) {
			t.Fatalf("found %v", found)
		}
	}
}
