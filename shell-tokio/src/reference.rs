//! `completions` and `man`: the command line in the words of shells and of `man`, made of its own definition.

use std::{fs, io, path::Path};

use clap::Command;
use clap_mangen::Man;

use crate::cli::{CompletionsArgs, ManArgs, definition};

/// The section of commands.
const SECTION: &str = "1";

/// The script that completes the command line in a shell.
///
/// # Errors
///
/// It cannot be written.
pub fn completions(args: &CompletionsArgs, out: &mut impl io::Write) -> io::Result<()> {
    let mut definition = definition();
    let name = definition.get_name().to_owned();
    let mut script = vec![];
    clap_complete::generate(args.shell, &mut definition, name, &mut script);
    out.write_all(&script)
}

/// A manual page, or all of them in a directory. The names of the files that were written go to `out`.
///
/// # Errors
///
/// There is no such command, or the pages cannot be written.
pub fn man(args: &ManArgs, out: &mut impl io::Write) -> io::Result<()> {
    let mut definition = definition();
    definition.build();
    match &args.output {
        Some(directory) => {
            fs::create_dir_all(directory)?;
            write_pages(&definition, definition.get_name(), directory, out)
        }
        None => {
            let mut name = definition.get_name().to_owned();
            let mut command = &definition;
            for wanted in &args.command {
                let no_such = || io::Error::other(format!("there is no command {wanted:?}: see --help"));
                command = command.find_subcommand(wanted).ok_or_else(no_such)?;
                name = format!("{name}-{wanted}");
            }
            out.write_all(&page(command, &name)?)
        }
    }
}

fn write_pages(command: &Command, name: &str, directory: &Path, out: &mut impl io::Write) -> io::Result<()> {
    let path = directory.join(format!("{name}.{SECTION}"));
    fs::write(&path, page(command, name)?)?;
    writeln!(out, "{}", path.display())?;
    let subcommands = command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help");
    for subcommand in subcommands {
        write_pages(subcommand, &format!("{name}-{}", subcommand.get_name()), directory, out)?;
    }
    Ok(())
}

fn page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    let mut page = vec![];
    let program = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone().display_name(name)).title(name).section(SECTION).source(program).render(&mut page)?;
    Ok(page)
}
