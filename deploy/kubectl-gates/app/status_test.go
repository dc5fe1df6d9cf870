package app

import (
	"encoding/json"
	"testing"
)

func TestStatus(t *testing.T) {
	const healthy = `{"version": "v1", "gates": [
{"name": "authn", "endpoint": "authn:1", "ready": true, "state": "READY", "replicas": [{"address": "10.0.0.1:1", "health": "SERVING"}],
 "configuration": "0123456789abcdef", "stream": {"following": true, "ageSeconds": 0.4321}, "cache": {"entries": 7, "hits": 2, "misses": 1, "bypassed": 1}},
{"name": "authz", "endpoint": "authz:1", "ready": true, "replicas": [{"address": "10.0.0.2:1", "health": "SERVING"}, {"address": "10.0.0.3:1", "health": "UNREACHABLE"}],
 "configuration": "cd", "stream": {"following": false, "ageSeconds": -1}, "cache": {"entries": 0, "hits": 0, "misses": 0, "bypassed": 0}},
{"name": "admission", "endpoint": "admission:1", "ready": true, "replicas": [{"address": "10.0.0.4:1", "health": "SERVING"}]}]}`
	s := newServer(t)
	s.objects[pathStatus] = json.RawMessage(healthy)
	s.run(t, "", "status").want(t, exitYes, `GATE        READY   REPLICAS   FOLLOWING         CACHE HITS   ENTRIES   CONFIGURATION
authn       yes     1/1        yes (400ms ago)   50.0% of 4   7         0123456789ab
authz       yes     1/2        no                none asked   0         cd
admission   yes     1/1        -                 -            -         -

GATE        HEALTH        REPLICA
authn       SERVING       10.0.0.1:1
authz       SERVING       10.0.0.2:1
authz       UNREACHABLE   10.0.0.3:1
admission   SERVING       10.0.0.4:1
`, "")
	s.objects[pathStatus] = json.RawMessage(`{"gates": [{"name": "authz", "endpoint": "authz:1", "ready": false, "reason": "name\u001b not known", "replicas": []}]}`)
	s.run(t, "", "status").want(t, exitNo, `GATE    READY   REPLICAS   FOLLOWING   CACHE HITS   ENTRIES   CONFIGURATION
authz   no      0/0        -           -            -         -

GATE    HEALTH    REPLICA
authz   UNKNOWN   authz:1 (resolved to nothing)

authz is not healthy: name^[ not known
`, "")
	s.run(t, "", "status", "-o", "yaml").want(t, exitNo, "gates:\n- endpoint: authz:1\n  name: authz\n  ready: false\n  reason: \"name\\e not known\"\n  replicas: []\n", "")
	s.objects[pathStatus] = json.RawMessage(`{}`)
	s.run(t, "", "status").wantError(t, "tells of no gate")
	s.objects[pathStatus] = json.RawMessage(`[]`)
	s.run(t, "", "status").wantError(t, "reading the answer of /gates/status")
	newServer(t).run(t, "", "status").wantError(t, "is it a Trigate?")
	s.run(t, "", "status", "x").wantError(t, `unexpected argument "x"`)
}
