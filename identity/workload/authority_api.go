package workload

import (
	"context"
	"crypto/x509"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// api answers the Workload API for one identity.
type api struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	id       spiffeid.ID
	issuer   *issuer
	rotation func() <-chan struct{}
}

// each calls send now, at every rotation, and when half an SVID's life is over.
func (s *api) each(ctx context.Context, send func() error) error {
	for {
		// Taken before sending, so that a rotation meanwhile is not missed.
		rotated := s.rotation()
		if err := send(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-rotated:
		case <-time.After(s.issuer.ttl / 2):
		}
	}
}

func (s *api) FetchX509SVID(_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	return s.each(stream.Context(), func() error {
		leaf, key, err := s.issuer.x509SVID(s.id)
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		return stream.Send(&workload.X509SVIDResponse{Svids: []*workload.X509SVID{{
			SpiffeId:    s.id.String(),
			X509Svid:    leaf,
			X509SvidKey: pkcs8,
			Bundle:      s.issuer.ca.Raw,
		}}})
	})
}

func (s *api) FetchX509Bundles(_ *workload.X509BundlesRequest, stream grpc.ServerStreamingServer[workload.X509BundlesResponse]) error {
	return s.each(stream.Context(), func() error {
		return stream.Send(&workload.X509BundlesResponse{Bundles: map[string][]byte{
			s.issuer.domain.IDString(): s.issuer.ca.Raw,
		}})
	})
}

func (s *api) FetchJWTSVID(_ context.Context, req *workload.JWTSVIDRequest) (*workload.JWTSVIDResponse, error) {
	if len(req.GetAudience()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "audience must be specified")
	}
	if want := req.GetSpiffeId(); want != "" && want != s.id.String() {
		return nil, status.Error(codes.PermissionDenied, "no identity issued")
	}
	token, err := s.issuer.jwtSVID(s.id, req.GetAudience())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &workload.JWTSVIDResponse{Svids: []*workload.JWTSVID{{SpiffeId: s.id.String(), Svid: token}}}, nil
}

func (s *api) FetchJWTBundles(_ *workload.JWTBundlesRequest, stream grpc.ServerStreamingServer[workload.JWTBundlesResponse]) error {
	return s.each(stream.Context(), func() error {
		keys, err := s.issuer.jwtBundle().Marshal()
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		return stream.Send(&workload.JWTBundlesResponse{Bundles: map[string][]byte{s.issuer.domain.IDString(): keys}})
	})
}

func (s *api) ValidateJWTSVID(_ context.Context, req *workload.ValidateJWTSVIDRequest) (*workload.ValidateJWTSVIDResponse, error) {
	if req.GetAudience() == "" || req.GetSvid() == "" {
		return nil, status.Error(codes.InvalidArgument, "audience and svid must be specified")
	}
	svid, err := jwtsvid.ParseAndValidate(req.GetSvid(), s.issuer.jwtBundle(), []string{req.GetAudience()})
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	claims, err := structpb.NewStruct(svid.Claims)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &workload.ValidateJWTSVIDResponse{SpiffeId: svid.ID.String(), Claims: claims}, nil
}
