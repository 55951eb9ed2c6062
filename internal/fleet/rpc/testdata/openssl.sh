# The certificates of a fleet by OpenSSL 3, as CA.Issue makes them. TestOpenSSL runs this file.

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 \
  -subj "/CN=ferry cluster" -addext keyUsage=critical,keyCertSign,cRLSign \
  -addext basicConstraints=critical,CA:TRUE,pathlen:0 -keyout ca-key.pem -out ca.pem

# For each API process:
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=api" \
  -addext subjectAltName=URI:ferry:role:api -addext extendedKeyUsage=clientAuth \
  -addext keyUsage=critical,digitalSignature -keyout api-key.pem -out api.csr
openssl x509 -req -in api.csr -copy_extensions copy -days 365 \
  -CA ca.pem -CAkey ca-key.pem -CAcreateserial -out api.pem

# For each relay, with its own id:
RELAY=6f1de3a2-5f34-4a3e-9d4c-0a5f3a1b2c3d
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=relay" \
  -addext subjectAltName=URI:ferry:role:relay,DNS:$RELAY -addext extendedKeyUsage=serverAuth \
  -addext keyUsage=critical,digitalSignature -keyout relay-key.pem -out relay.csr
openssl x509 -req -in relay.csr -copy_extensions copy -days 365 \
  -CA ca.pem -CAkey ca-key.pem -CAcreateserial -out relay.pem
