//! Certificates that are made for one test.

use std::{fs, io, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;

/// An authority that signs certificates, with a directory of its own for them.
#[derive(Debug)]
pub struct Authority {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// The files of a certificate and its key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Both, as mongod wants them.
    pub both: PathBuf,
    /// The certificate of the authority that signed it.
    pub authority: PathBuf,
}

/// When a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Valid {
    /// Now.
    Now,
    /// Until some years ago.
    NoLonger,
    /// From some decades on.
    NotYet,
}

impl Authority {
    /// A new authority, which nobody knows yet.
    ///
    /// # Panics
    ///
    /// No certificate can be made, or no file written.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("no name is no bad name");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority for tests");
        let issuer = CertifiedIssuer::self_signed(params, new_key()).expect("an authority signs itself");
        let authority = Self { directory: tempfile::tempdir().expect("there is room for files"), issuer };
        fs::write(authority.certificate(), authority.issuer.pem()).expect("there is room for files");
        authority
    }

    /// The file with its own certificate.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.directory.path().join("authority.pem")
    }

    /// Signs a certificate for a server, a host name or an address.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    ///
    /// # Panics
    ///
    /// The host cannot be in a certificate.
    pub fn sign(&self, host: &str, valid: Valid) -> io::Result<Certificate> {
        let mut params = CertificateParams::new([host.to_owned()]).expect("it is a host");
        (params.not_before, params.not_after) = match valid {
            Valid::Now => (params.not_before, params.not_after),
            Valid::NoLonger => (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1)),
            Valid::NotYet => (date_time_ymd(2090, 1, 1), date_time_ymd(2091, 1, 1)),
        };
        let key = new_key();
        let signed = params.signed_by(&key, &self.issuer).expect("the authority signs");
        let name = format!("{host}-{valid:?}");
        let file = |ending: &str| self.directory.path().join(format!("{name}.{ending}"));
        let files = Certificate {
            certificate: file("crt"),
            key: file("key"),
            both: file("pem"),
            authority: self.certificate(),
        };
        fs::write(&files.certificate, signed.pem())?;
        fs::write(&files.key, key.serialize_pem())?;
        fs::write(&files.both, format!("{}{}", signed.pem(), key.serialize_pem()))?;
        Ok(files)
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Certificate {
    /// The lines of nats-server's configuration that use it.
    #[must_use]
    pub fn nats_config(&self) -> String {
        format!("tls {{ cert_file: {:?}, key_file: {:?} }}\n", self.certificate, self.key)
    }
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("there is randomness")
}
