// Command probe is what the pods of the tests run: it serves, and says on demand who the
// API server takes its service account for.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// timeout bounds a request to the API server.
const timeout = 10 * time.Second

func main() {
	if len(os.Args) > 1 && os.Args[1] == "whoami" {
		name, err := whoami()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(name)
		return
	}
	log.Print("the probe serves")
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: timeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "the probe answers")
	})}
	log.Fatal(server.ListenAndServe())
}

// whoami asks the API server, by the Pod's own token and the Service kubernetes.
func whoami() (string, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return "", err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}
