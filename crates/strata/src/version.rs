//! Which Strata this is.

use strata_engine::options::Version;

/// Version of the package and the beginning of the commit it was built from, in one line.
pub const LINE: &str = env!("STRATA_VERSION");

/// The same for a report.
pub fn version() -> Version {
    let commit = env!("STRATA_COMMIT");
    Version {
        package: env!("CARGO_PKG_VERSION").to_owned(),
        commit: (!commit.is_empty()).then(|| commit.to_owned()),
    }
}

/// A version in one line.
pub fn line(version: &Version) -> String {
    match &version.commit {
        Some(commit) => {
            format!("{} ({})", version.package, commit.get(..12).unwrap_or(commit))
        }
        None => version.package.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_the_report_says() {
        assert_eq!(line(&version()), LINE);
        assert!(LINE.starts_with(env!("CARGO_PKG_VERSION")));
    }
}
