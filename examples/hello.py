from dataclasses import dataclass

from toolpost import Context, Server

server = Server("hello")


@dataclass
class Greeting:
    text: str
    language: str


@server.tool
async def greet(name: str, language: str = "en", *, ctx: Context) -> Greeting:
    """Greet a person by name."""
    await ctx.info(f"greeting {name}")
    return Greeting(f"{'Bonjour' if language == 'fr' else 'Hello'}, {name}!", language)


if __name__ == "__main__":
    server.run()  # over stdio: hosts start this file as a process
