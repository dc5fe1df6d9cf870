package dial

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// listScheme is the scheme of the resolver that a list of addresses gets.
const listScheme = "trigate-list"

// CheckEndpoint reports an endpoint that cannot be called: neither a gRPC
// target, nor host:port, nor a list of host:port.
func CheckEndpoint(endpoint string) error {
	_, _, err := targetOf("", endpoint)
	return err
}

// targetOf returns the gRPC target of an endpoint, and what resolves it.
func targetOf(name, endpoint string) (string, resolver.Builder, error) {
	if endpoint == "" {
		return "", nil, errors.New("no endpoint")
	}
	if strings.Contains(endpoint, "://") || strings.HasPrefix(endpoint, "unix:") {
		target, err := url.Parse(endpoint)
		if err != nil {
			return "", nil, fmt.Errorf("endpoint %q: %w", endpoint, err)
		}
		builder := resolver.Get(target.Scheme)
		if builder == nil {
			return "", nil, fmt.Errorf("endpoint %q: %q is no scheme of gRPC", endpoint, target.Scheme)
		}
		return endpoint, builder, nil
	}
	var addresses []resolver.Address
	for address := range strings.SplitSeq(endpoint, ",") {
		address = strings.TrimSpace(address)
		if host, port, err := net.SplitHostPort(address); err != nil {
			return "", nil, fmt.Errorf("endpoint %q: %w", endpoint, err)
		} else if host == "" || port == "" {
			return "", nil, fmt.Errorf("endpoint %q: %q is not HOST:PORT", endpoint, address)
		}
		addresses = append(addresses, resolver.Address{Addr: address})
	}
	if len(addresses) == 1 {
		return "dns:///" + addresses[0].Addr, resolver.Get("dns"), nil
	}
	list := manual.NewBuilderWithScheme(listScheme)
	list.InitialState(resolver.State{Addresses: addresses})
	return listScheme + ":///" + name, list, nil
}

// Retries of safe methods. The pauses are at most 25, 50 and 100 ms and are
// jittered, so that a call goes on for a tenth of a second or so: longer than a
// dead replica takes to be found dead, shorter than anybody notices.
const (
	retryAttempts       = 4
	retryInitialBackoff = "0.025s"
	retryMaxBackoff     = "0.2s"
)

// SafeMethods returns the full methods of services that are marked
// idempotency_level NO_SIDE_EFFECTS: those that may be retried.
func SafeMethods(services ...protoreflect.ServiceDescriptor) []string {
	var safe []string
	for _, service := range services {
		methods := service.Methods()
		for i := range methods.Len() {
			method := methods.Get(i)
			options, ok := method.Options().(*descriptorpb.MethodOptions)
			if ok && options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS {
				safe = append(safe, fmt.Sprintf("/%s/%s", service.FullName(), method.Name()))
			}
		}
	}
	return safe
}

// serviceConfigJSON returns gRPC's service config: round robin over replicas
// that report SERVING, and retries of the safe methods only.
func serviceConfigJSON(safeMethods []string) (string, error) {
	type methodName struct {
		Service string `json:"service"`
		Method  string `json:"method"`
	}
	type retryPolicy struct {
		MaxAttempts          int      `json:"maxAttempts"`
		InitialBackoff       string   `json:"initialBackoff"`
		MaxBackoff           string   `json:"maxBackoff"`
		BackoffMultiplier    float64  `json:"backoffMultiplier"`
		RetryableStatusCodes []string `json:"retryableStatusCodes"`
	}
	type methodConfig struct {
		Name        []methodName `json:"name"`
		RetryPolicy retryPolicy  `json:"retryPolicy"`
	}
	var config struct {
		LoadBalancingConfig []map[string]struct{} `json:"loadBalancingConfig"`
		HealthCheckConfig   struct {
			ServiceName string `json:"serviceName"`
		} `json:"healthCheckConfig"`
		MethodConfig []methodConfig `json:"methodConfig,omitempty"`
	}
	config.LoadBalancingConfig = []map[string]struct{}{{"round_robin": {}}}
	var names []methodName
	for _, fullMethod := range safeMethods {
		service, method, ok := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
		if !ok || service == "" || method == "" {
			return "", fmt.Errorf("%q is not a full method name", fullMethod)
		}
		names = append(names, methodName{service, method})
	}
	if len(names) > 0 {
		config.MethodConfig = []methodConfig{{Name: names, RetryPolicy: retryPolicy{
			MaxAttempts:          retryAttempts,
			InitialBackoff:       retryInitialBackoff,
			MaxBackoff:           retryMaxBackoff,
			BackoffMultiplier:    2,
			RetryableStatusCodes: []string{"UNAVAILABLE"},
		}}}
	}
	encoded, err := json.Marshal(config)
	return string(encoded), err
}
