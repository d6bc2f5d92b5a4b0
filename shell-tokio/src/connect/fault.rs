//! What is wrong with a connection, in one sentence that says what happened and what to change.
//!
//! The clients tell it in the words of their parts (`received corrupt message of type InvalidContentType`), or with what
//! the server said, which can hold what it was sent. Neither is passed on.

use std::{error::Error, io};

use async_nats::{
    ConnectErrorKind,
    rustls::{self, CertificateError, InvalidMessage},
};
use mongodb::error::ErrorKind;
use transcript_core::Server;

/// What is wrong with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The host's name cannot be resolved.
    Name,
    /// Nothing listens there.
    NothingListens,
    /// The network says that there is no way.
    NoRoute,
    /// No answer in time.
    Silent,
    /// It closed the connection, or reset it, before it let us in.
    Closed,
    /// It does not speak TLS.
    NotTls,
    /// It and this program have no version or cipher of TLS in common.
    TlsVersion,
    /// It refused our certificate, or wants one.
    ClientCertificate,
    /// The system has no certificates of authorities that can be read.
    NoRoots,
    /// Its certificate is signed by no authority that is trusted.
    UnknownIssuer,
    /// Its certificate is for another name.
    WrongName,
    /// Its certificate has expired.
    Expired,
    /// Its certificate is not valid yet.
    NotYetValid,
    /// Its certificate is bad in another way.
    Certificate,
    /// It refused user, password, token, nkey or JWT.
    Login,
    /// The files with the credentials cannot be used.
    Credentials,
    /// The driver refuses the settings, or the files that they name.
    Settings,
    /// There is a server, but no primary to write to.
    NoPrimary,
    /// Anything else.
    Other,
}

impl Fault {
    /// What happened, and what to change.
    #[must_use]
    pub fn explain(self, server: Server) -> &'static str {
        match (self, server) {
            (Self::Name, _) => "the host's name cannot be resolved: correct it, or the DNS",
            (Self::NothingListens, _) => "nothing listens there: start the server, or correct the host and port",
            (Self::NoRoute, _) => "the network does not reach the host: correct the host, the route or the firewall",
            (Self::Silent, Server::Nats) => {
                "no answer in time: the server or a firewall is silent, or the server has handshake_first, for which \
                 --nats-tls-first is given"
            }
            (Self::Silent, Server::Mongodb) => "no answer in time: the server, or a firewall, is silent",
            (Self::Closed, Server::Nats) => {
                "the server closed the connection before it had let us in: see its log; it may speak another protocol"
            }
            (Self::Closed, Server::Mongodb) => {
                "the server closed the connection before it had let us in: where it requires TLS, tls=true is given in \
                 the connection string, and where it has none, it is left out"
            }
            (Self::NotTls, Server::Nats) => {
                "TLS was required, but the server does not speak TLS there, or not before its first message: enable it on \
                 the server, or give a nats:// address and neither --nats-require-tls, --nats-tls-ca, --nats-tls-cert \
                 nor --nats-tls-first"
            }
            (Self::NotTls, Server::Mongodb) => {
                "TLS was required, but the server does not speak TLS there: enable it on the server, or leave tls=true out"
            }
            (Self::TlsVersion, _) => {
                "the server and this program have no version or cipher of TLS in common: allow TLS 1.2 or 1.3 on the server"
            }
            (Self::ClientCertificate, Server::Nats) => {
                "the server refused our certificate, or wants one: give one that it trusts with --nats-tls-cert and \
                 --nats-tls-key"
            }
            (Self::ClientCertificate, Server::Mongodb) => {
                "the server refused our certificate, or wants one: give one that it trusts with tlsCertificateKeyFile"
            }
            (Self::NoRoots, _) => {
                "the system has no certificates of authorities that can be read: install them, or give --nats-tls-ca"
            }
            (Self::UnknownIssuer, Server::Nats) => {
                "the server's certificate is signed by no authority that is trusted: give the authority's certificate with \
                 --nats-tls-ca"
            }
            (Self::UnknownIssuer, Server::Mongodb) => {
                "the server's certificate is signed by no authority that is trusted: give the authority's certificate with \
                 tlsCAFile"
            }
            (Self::WrongName, _) => {
                "the server's certificate is for another name: connect by a name that is in it, or give the server a \
                 certificate with this one"
            }
            (Self::Expired, _) => "the server's certificate has expired: renew it, or correct this machine's clock",
            (Self::NotYetValid, _) => {
                "the server's certificate is not valid yet: correct this machine's clock, or the certificate"
            }
            (Self::Certificate, _) => "the server's certificate cannot be used: give the server another one",
            (Self::Login, Server::Nats) => {
                "the server refused the login: correct the user, password, token, nkey or credentials, here or on the server"
            }
            (Self::Login, Server::Mongodb) => {
                "the server refused the login: correct the user, the password, authSource or authMechanism, here or on the \
                 server"
            }
            (Self::Credentials, _) => {
                "the file with the credentials cannot be read, or does not hold them: correct it; it is read again before \
                 each attempt"
            }
            (Self::Settings, _) => {
                "its settings cannot be used together, or a file that they name cannot be read: see tlsCAFile and \
                 tlsCertificateKeyFile, and --log debug"
            }
            (Self::NoPrimary, _) => {
                "no primary was found: start the servers of the replica set, or correct replicaSet and the hosts"
            }
            (Self::Other, _) => "the connection failed: --log debug shows what the client says",
        }
    }

    /// Whether trying again cannot help: somebody has to change something first.
    #[must_use]
    pub fn is_lasting(self) -> bool {
        match self {
            Self::NotTls
            | Self::TlsVersion
            | Self::ClientCertificate
            | Self::NoRoots
            | Self::UnknownIssuer
            | Self::WrongName
            | Self::Expired
            | Self::NotYetValid
            | Self::Certificate
            | Self::Login
            | Self::Credentials
            | Self::Settings => true,
            Self::Name
            | Self::NothingListens
            | Self::NoRoute
            | Self::Silent
            | Self::Closed
            | Self::NoPrimary
            | Self::Other => false,
        }
    }

    /// Whether it is a matter of who we are, which credentials that are replaced can change.
    #[must_use]
    pub fn is_login(self) -> bool {
        matches!(self, Self::Login | Self::Credentials)
    }

    pub(super) fn of_nats(error: &async_nats::ConnectError) -> Self {
        match error.kind() {
            ConnectErrorKind::Dns => Self::Name,
            ConnectErrorKind::AuthorizationViolation => Self::Login,
            ConnectErrorKind::Authentication => Self::Credentials,
            ConnectErrorKind::TimedOut => Self::Silent,
            ConnectErrorKind::ServerParse
            | ConnectErrorKind::Tls
            | ConnectErrorKind::Io
            | ConnectErrorKind::MaxReconnects => match error.source().map(Self::of_cause) {
                Some(fault) if fault != Self::Other => fault,
                _ => Self::of_nats_text(&error.to_string()),
            },
        }
    }

    /// What async-nats keeps of a failed attempt to reconnect is its text.
    pub(super) fn of_nats_text(text: &str) -> Self {
        let beginnings = [
            ("authorization violation", Self::Login),
            ("failed signing nonce", Self::Credentials),
            ("DNS error", Self::Name),
        ];
        if let Some((_, fault)) = beginnings.iter().find(|(start, _)| text.starts_with(start)) {
            return *fault;
        }
        let parts = [
            ("could not load platform certs", Self::NoRoots),
            ("InvalidContentType", Self::NotTls),
            ("UnknownIssuer", Self::UnknownIssuer),
            ("not valid for name", Self::WrongName),
            ("NotValidForName", Self::WrongName),
            ("not valid for any names", Self::WrongName),
            ("certificate expired", Self::Expired),
            ("Expired", Self::Expired),
            ("certificate not valid yet", Self::NotYetValid),
            ("NotValidYet", Self::NotYetValid),
            ("BadSignature", Self::UnknownIssuer),
            ("invalid peer certificate", Self::Certificate),
            ("peer is incompatible", Self::TlsVersion),
            ("ProtocolVersion", Self::TlsVersion),
            ("HandshakeFailure", Self::TlsVersion),
            ("received fatal alert", Self::ClientCertificate),
            ("Connection refused", Self::NothingListens),
            ("Connection reset", Self::Closed),
            ("broken pipe", Self::Closed),
            ("Broken pipe", Self::Closed),
            ("eof", Self::Closed),
            ("got nothing", Self::Closed),
            ("unreachable", Self::NoRoute),
            ("timed out", Self::Silent),
        ];
        parts.iter().find(|(part, _)| text.contains(part)).map_or(Self::Other, |(_, fault)| *fault)
    }

    /// What is wrong with a connection to MongoDB; [`Fault::Other`] where it is nothing with the connection.
    #[must_use]
    pub fn of_mongodb(error: &mongodb::error::Error) -> Self {
        #[expect(clippy::wildcard_enum_match_arm, reason = "the driver's error kinds are open-ended")]
        match error.kind.as_ref() {
            ErrorKind::Authentication { .. } => Self::Login,
            ErrorKind::DnsResolve { .. } => Self::Name,
            ErrorKind::Io(error) => Self::of_io(error),
            ErrorKind::ServerSelection { .. } => Self::NoPrimary,
            ErrorKind::InvalidTlsConfig { .. } | ErrorKind::InvalidArgument { .. } => Self::Settings,
            _ => Self::Other,
        }
    }

    fn of_cause(cause: &(dyn Error + 'static)) -> Self {
        if let Some(error) = cause.downcast_ref::<rustls::Error>() {
            return Self::of_rustls(error);
        }
        cause.downcast_ref::<io::Error>().map_or(Self::Other, Self::of_io)
    }

    fn of_io(error: &io::Error) -> Self {
        if let Some(cause) = error.get_ref() {
            let fault = Self::of_cause(cause);
            if fault != Self::Other {
                return fault;
            }
        }
        #[expect(clippy::wildcard_enum_match_arm, reason = "the kinds of I/O errors are open-ended")]
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::NothingListens,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe => Self::Closed,
            io::ErrorKind::TimedOut => Self::Silent,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::NoRoute,
            _ => Self::Other,
        }
    }

    fn of_rustls(error: &rustls::Error) -> Self {
        #[expect(clippy::wildcard_enum_match_arm, reason = "the errors of rustls are open-ended")]
        match error {
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => Self::NotTls,
            rustls::Error::PeerIncompatible(_) => Self::TlsVersion,
            rustls::Error::AlertReceived(
                rustls::AlertDescription::ProtocolVersion | rustls::AlertDescription::HandshakeFailure,
            ) => Self::TlsVersion,
            rustls::Error::AlertReceived(_) => Self::ClientCertificate,
            rustls::Error::InvalidCertificate(fault) => match fault {
                // An authority that was made again has the old name and another key.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Self::WrongName,
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
                _ => Self::Certificate,
            },
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_nats::rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    #[test]
    fn the_text_that_the_nats_client_keeps_tells_the_same_as_its_error() {
        let moment = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let expected = ServerName::try_from("localhost").unwrap();
        let certificate = rustls::Error::InvalidCertificate;
        for (error, fault) in [
            (rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType), Fault::NotTls),
            (certificate(CertificateError::UnknownIssuer), Fault::UnknownIssuer),
            (certificate(CertificateError::NotValidForName), Fault::WrongName),
            (
                certificate(CertificateError::NotValidForNameContext { expected: expected.clone(), presented: vec![] }),
                Fault::WrongName,
            ),
            (
                certificate(CertificateError::NotValidForNameContext { expected, presented: vec!["other".to_owned()] }),
                Fault::WrongName,
            ),
            (certificate(CertificateError::Expired), Fault::Expired),
            (certificate(CertificateError::ExpiredContext { time: moment(2), not_after: moment(1) }), Fault::Expired),
            (certificate(CertificateError::NotValidYet), Fault::NotYetValid),
            (
                certificate(CertificateError::NotValidYetContext { time: moment(1), not_before: moment(2) }),
                Fault::NotYetValid,
            ),
            (certificate(CertificateError::BadSignature), Fault::UnknownIssuer),
            (certificate(CertificateError::Revoked), Fault::Certificate),
            (rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired), Fault::ClientCertificate),
            (rustls::Error::AlertReceived(rustls::AlertDescription::ProtocolVersion), Fault::TlsVersion),
        ] {
            let text = format!("IO error: {error}");
            let error = async_nats::ConnectError::from(io::Error::new(io::ErrorKind::InvalidData, error));
            assert_eq!((Fault::of_nats(&error), Fault::of_nats_text(&text)), (fault, fault), "{text}");
        }
    }
}
